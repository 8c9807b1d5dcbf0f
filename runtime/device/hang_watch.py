"""Detects inferences that hang: a thread that sleeps until the time limit of the running batch."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runtime.device.queue import Job


@dataclass(eq=False, slots=True)
class RunningBatch:
    """The batch that a thread runs. Mutable: started again for each part of a batch that failed."""

    jobs: Sequence[Job]
    begun_s: float = 0.0
    timeout_at_s: float = math.inf
    is_abandoned: bool = False


class HangWatch:
    """Watches one run at a time. Shares the device worker's lock."""

    def __init__(self, lock: threading.Lock, on_hung: Callable[[RunningBatch], None]) -> None:
        """`on_hung` is called with the lock held, in the watching thread."""
        self.run: RunningBatch | None = None
        """Guarded by the lock."""
        self._lock = lock
        self._on_hung = on_hung
        self._changed = threading.Condition(lock)
        self._watched_until_s = math.inf
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="device-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def begin(self, run: RunningBatch, limit_s: float) -> float:
        """Start the time of a run; returns now."""
        with self._lock:
            run.begun_s = time.monotonic()
            run.timeout_at_s = run.begun_s + limit_s
            if run.timeout_at_s < self._watched_until_s:
                self._changed.notify()
            return run.begun_s

    def _watch(self) -> None:
        """Sleeps until the time limit of the run that it last read, so it wakes up rarely."""
        with self._lock:
            while not self._is_closed:
                run, now_s = self.run, time.monotonic()
                if run is not None and now_s >= run.timeout_at_s:
                    run.is_abandoned = True
                    self.run = None
                    self._on_hung(run)
                    continue
                self._watched_until_s = math.inf if run is None else run.timeout_at_s
                del run  # it must not keep a network alive while nothing else runs
                is_timed = math.isfinite(self._watched_until_s)
                self._changed.wait(self._watched_until_s - now_s if is_timed else None)
