"""The download bandwidth of a pod, shared by all its loads: a rate limit and two priorities.

While an urgent load (one that a request waits for) reads bytes, the other loads together may read
`PRELOAD_SHARE` of the bytes that it reads, with or without a configured rate, so that preloads
never starve. A preload can become urgent while it runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from runtime.errors import StorageFailed
from runtime.storage.load_priority import LoadTicket

PRELOAD_SHARE = 1 / 16
"""Bytes that preloads may read per byte of urgent downloads."""
MAX_PRELOAD_READERS = 16
"""Maximum connections of all preloads together: half of a pod's connections to an endpoint."""
MAX_CREDIT_BYTES = 1024**2
PIECE_S = 0.02
"""Seconds of the configured rate that are granted at once: the longest delay of an urgent download
behind a preload."""
STALL_TIMEOUT_S = 1.0
"""An urgent download that reads nothing for this long no longer delays preloads."""


class Bandwidth:
    """A token bucket over bytes, for threads.

    Each read moves the time at which the link is free again, so that all threads together keep to
    the rate. Up to `burst_s` of unused time can be caught up.
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
        self._rate_lock = threading.Lock()
        self._free_at_s = 0.0
        self._is_closed = False
        self._changed = threading.Condition()
        self._uses: list[BandwidthUse] = []
        self._credit_bytes = 0.0
        self._preload_readers = 0

    def close(self) -> None:
        """End all downloads with StorageFailed, since the pod shuts down."""
        self._is_closed = True
        self._notify()

    @contextmanager
    def use(self, ticket: LoadTicket) -> Iterator[BandwidthUse]:
        use = BandwidthUse(self, ticket, self._clock())
        ticket.add_listener(self._notify)
        with self._changed:
            self._uses.append(use)
        try:
            yield use
        finally:
            ticket.remove_listener(self._notify)
            with self._changed:
                self._uses.remove(use)
                self._changed.notify_all()

    def take(self, use: BandwidthUse, byte_count: int) -> None:
        """Wait until the bytes may be read; raises LoadCancelled, or StorageFailed once closed."""
        max_piece = byte_count
        if self.bytes_per_s is not None:
            max_piece = max(1, int(self.bytes_per_s * PIECE_S))
        while byte_count > 0:
            piece = min(byte_count, max_piece)
            self._wait_for_priority(use, piece)
            self._wait_for_rate(piece)
            use.ticket.has_started = True
            byte_count -= piece

    @contextmanager
    def connection_slot(self, use: BandwidthUse) -> Iterator[None]:
        """A slot for one connection; preloads share `MAX_PRELOAD_READERS` of them."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._must_stop(use)
                    or use.ticket.is_urgent
                    or self._preload_readers < MAX_PRELOAD_READERS
                )
            )
            self._raise_if_stopped(use)
            slots = 0 if use.ticket.is_urgent else 1
            self._preload_readers += slots
        try:
            yield
        finally:
            with self._changed:
                self._preload_readers -= slots
                self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _must_stop(self, use: BandwidthUse) -> bool:
        return self._is_closed or use.ticket.is_cancelled

    def _raise_if_stopped(self, use: BandwidthUse) -> None:
        if self._is_closed:
            raise StorageFailed("the pod shuts down; the next load continues from what it fetched")
        use.ticket.raise_if_cancelled()

    def _wait_for_priority(self, use: BandwidthUse, byte_count: int) -> None:
        """Give urgent downloads priority: their bytes earn the credit that preloads spend."""
        self._raise_if_stopped(use)
        with self._changed:
            use.last_read_s = self._clock()
            if len(self._uses) < 2:
                return
            if use.ticket.is_urgent:
                earned = self._credit_bytes + PRELOAD_SHARE * byte_count
                self._credit_bytes = min(MAX_CREDIT_BYTES, earned)
                self._changed.notify_all()
                return
            price = min(byte_count, MAX_CREDIT_BYTES)
            while not self._may_pass(use, price):
                self._changed.wait(STALL_TIMEOUT_S)
            if self._is_urgent_active():
                self._credit_bytes = max(0.0, self._credit_bytes - price)
        self._raise_if_stopped(use)

    def _may_pass(self, use: BandwidthUse, price: int) -> bool:
        if self._must_stop(use) or use.ticket.is_urgent or self._credit_bytes >= price:
            return True
        return not self._is_urgent_active()

    def _is_urgent_active(self) -> bool:
        """Whether an urgent download has read bytes within `STALL_TIMEOUT_S`."""
        since_s = self._clock() - STALL_TIMEOUT_S
        return any(use.ticket.is_urgent and use.last_read_s > since_s for use in self._uses)

    def _wait_for_rate(self, byte_count: int) -> None:
        if self.bytes_per_s is None:
            return
        with self._rate_lock:
            now_s = self._clock()
            start_s = max(self._free_at_s, now_s - self._burst_s)
            self._free_at_s = start_s + byte_count / self.bytes_per_s
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)


@dataclass(eq=False, slots=True)
class BandwidthUse:
    """The bandwidth for the downloads of one load."""

    shared: Bandwidth
    ticket: LoadTicket
    last_read_s: float
    """Time of the last read, on the clock of the bandwidth."""

    def take(self, byte_count: int) -> None:
        self.shared.take(self, byte_count)

    @contextmanager
    def connection_slot(self) -> Iterator[None]:
        with self.shared.connection_slot(self):
            yield
