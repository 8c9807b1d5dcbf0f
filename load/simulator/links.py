"""A link that several transfers share equally: processor sharing, in virtual time.

Every transfer under way gets the link's rate divided by their number. What one transfer alone has
been given since the start (the attained service) grows for all alike, so each ends when it has
grown by that transfer's bytes: one number for all, and a heap of ends.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from load.simulator.event_queue import EventQueue


class SharedLink:
    """A link of some bytes per second; infinity: every transfer is over at once."""

    def __init__(self, kernel: EventQueue, bytes_per_s: float) -> None:
        self._kernel = kernel
        self._rate = bytes_per_s
        self._given = 0.0
        """Bytes that each transfer under way was given since the start."""
        self._since_s = 0.0
        self._under_way: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self._plan = 0

    def __len__(self) -> int:
        return len(self._under_way)

    def send(self, size_bytes: float, done: Callable[[Any], None], argument: Any) -> None:
        """Move so many bytes; `done(argument)` is called when they are through."""
        if self._rate == inf or size_bytes <= 0:
            self._kernel.after(0.0, done, argument)
            return
        self._settle()
        self._number += 1
        heappush(self._under_way, (self._given + size_bytes, self._number, done, argument))
        self._plan_next()

    def _settle(self) -> None:
        now_s = self._kernel.now_s
        if self._under_way:
            self._given += (now_s - self._since_s) * self._rate / len(self._under_way)
        self._since_s = now_s

    def _plan_next(self) -> None:
        self._plan += 1
        left = max(0.0, self._under_way[0][0] - self._given)
        self._kernel.after(
            left * len(self._under_way) / self._rate, self._first_is_through, self._plan
        )

    def _first_is_through(self, plan: int) -> None:
        if plan != self._plan:  # others came or went since
            return
        self._settle()
        end, _, done, argument = heappop(self._under_way)
        self._given = end
        if self._under_way:
            self._plan_next()
        else:
            self._given = 0.0
        done(argument)
