"""A link that its transfers share equally: processor sharing, in virtual time.

Each of n transfers gets 1/n of the link's rate, so the bytes per transfer (the attained service)
grow equally for all. One counter holds them; a transfer ends when the counter has grown by the
transfer's size, and a heap holds the values of the counter at which transfers end.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from load.simulator.event_queue import EventQueue


class SharedLink:
    """A link of `bytes_per_s`; transfers take no time if that is infinite."""

    def __init__(self, events: EventQueue, bytes_per_s: float) -> None:
        self._events = events
        self._rate = bytes_per_s
        self._attained = 0.0
        """Attained service: bytes per transfer since the link was last idle."""
        self._since_s = 0.0
        self._transfers: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self._plan = 0

    def send(self, size_bytes: float, done: Callable[[Any], None], argument: Any) -> None:
        """Transfer `size_bytes`, then call `done(argument)`."""
        if self._rate == inf or size_bytes <= 0:
            self._events.after(0.0, done, argument)
            return
        self._settle()
        self._number += 1
        heappush(self._transfers, (self._attained + size_bytes, self._number, done, argument))
        self._plan_next()

    def _settle(self) -> None:
        now_s = self._events.now_s
        if self._transfers:
            self._attained += (now_s - self._since_s) * self._rate / len(self._transfers)
        self._since_s = now_s

    def _plan_next(self) -> None:
        self._plan += 1
        left = max(0.0, self._transfers[0][0] - self._attained)
        self._events.after(left * len(self._transfers) / self._rate, self._first_ended, self._plan)

    def _first_ended(self, plan: int) -> None:
        if plan != self._plan:  # another transfer started or ended since
            return
        self._settle()
        end, _, done, argument = heappop(self._transfers)
        self._attained = end
        if self._transfers:
            self._plan_next()
        else:
            self._attained = 0.0
        done(argument)
