"""Deadlines of requests on one timer: most requests end before, and cost none."""

from __future__ import annotations

import heapq
from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.routing.timers import Timer, Timers

_SOON_S: Final = 1.0
_WIDTH_MS: Final = 10
"""How late a deadline may be noticed; one that is `_SOON_S` away or more, ten times as late."""


class Expiring(Protocol):
    def on_deadline(self) -> None:
        """The deadline has passed."""


class Deadlines:
    def __init__(self, timers: Timers, now_s: Callable[[], float]) -> None:
        self._timers = timers
        self._now_s = now_s
        self._buckets: dict[int, set[Expiring]] = {}
        """By the millisecond at which they are due."""
        self._due_ms: list[int] = []
        """A heap of the buckets' times."""
        self._timer: Timer | None = None

    def add(self, request: Expiring, until_s: float, now_s: float) -> set[Expiring]:
        """Call `on_deadline` at this time, unless the request leaves the set until then."""
        width_ms = _WIDTH_MS if until_s - now_s < _SOON_S else 10 * _WIDTH_MS
        due_ms = ceil(until_s * 1000)
        due_ms += -due_ms % width_ms
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            bucket = self._buckets[due_ms] = set()
            heapq.heappush(self._due_ms, due_ms)
            if self._due_ms[0] == due_ms:
                self._set_timer()
        bucket.add(request)
        return bucket

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_s = max(0.0, self._due_ms[0] / 1000 - self._now_s())
        self._timer = self._timers.after(left_s, self._on_timer, None)

    def _on_timer(self, _: None) -> None:
        now_ms = round(self._now_s() * 1000)
        while self._due_ms and self._due_ms[0] <= now_ms:
            for request in list(self._buckets.pop(heapq.heappop(self._due_ms))):
                request.on_deadline()
        self._timer = None
        if self._due_ms:
            self._set_timer()
