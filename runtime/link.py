"""The rate of a pod's link to object storage, shared by all its downloads."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from runtime.errors import StorageFailed

if TYPE_CHECKING:
    from collections.abc import Callable


class LinkRate:
    """A token bucket over bytes, for threads: `take` returns when the bytes may have passed.

    Each taker moves the time at which the link is free again; the sum over all threads keeps to
    the rate, and short pauses of a reader are made up within `burst_s`.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        burst_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        self._is_cut = False

    def cut(self) -> None:
        """Let nothing more pass: the pod leaves."""
        self._is_cut = True

    def take(self, byte_count: int) -> None:
        """Wait until `byte_count` more bytes have passed the link; raises StorageFailed if cut."""
        if self._is_cut:
            raise StorageFailed("the pod shuts down: what has come stays for the next one")
        if self.bytes_per_s is None:
            return
        with self._lock:
            now_s = self._clock()
            start_s = max(self._free_at_s, now_s - self._burst_s)
            self._free_at_s = start_s + byte_count / self.bytes_per_s
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)
