"""What each of several answers under way takes of a device that they share.

While n are under way each takes 1/n of the time (processor sharing), so that the shares of all add
up to the time in which any was: their mean is the reciprocal of the throughput.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(slots=True)
class DeviceShare:
    """One answer's share; `seconds` stands once it is over."""

    seconds: float = 0.0


class ProcessorSharing:
    """The account of one device. Pure but for the clock that it is given, in seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._under_way = 0
        self._at_s = now_s()
        self._given_s = 0.0
        """What somebody has taken who was under way all the time."""

    def enter(self) -> float:
        """One more is under way; the mark is what `leave` asks for."""
        self._pass_time()
        self._under_way += 1
        return self._given_s

    def leave(self, mark_s: float) -> float:
        """One is over: the seconds that it took."""
        self._pass_time()
        self._under_way -= 1
        return self._given_s - mark_s

    @contextmanager
    def measure(self) -> Iterator[DeviceShare]:
        """The share of what runs inside."""
        share, mark_s = DeviceShare(), self.enter()
        try:
            yield share
        finally:
            share.seconds = self.leave(mark_s)

    def _pass_time(self) -> None:
        now_s = self._now_s()
        if self._under_way:
            self._given_s += (now_s - self._at_s) / self._under_way
        self._at_s = now_s
