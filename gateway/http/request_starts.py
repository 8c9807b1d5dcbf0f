"""Begins inference requests: at most 16 per turn of the event loop; others wait for later turns.

A turn of the loop reads all connections that have sent something. With 512 busy clients on one core
such a turn took 170 ms, and a new connection needs several turns until its first response.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from gateway.http.client_request import ClientRequest

MAX_PER_TURN: Final = 16
"""About 3 ms of a core; the turn's own cost, its system call, is a hundredth of that."""


class RequestStarts:
    """Of one lane: first requests of connections have one, all others another."""

    def __init__(self) -> None:
        self._waiting: deque[ClientRequest] = deque()
        self._left = MAX_PER_TURN
        self._is_scheduled = False

    def begin(self, request: ClientRequest, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve the request, in this turn or a later one; in the order of calls."""
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._next_turn, loop)
        if self._left:
            self._left -= 1
            request.start()
        else:
            self._waiting.append(request)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        count = min(len(waiting), MAX_PER_TURN)
        self._left = MAX_PER_TURN - count
        for _ in range(count):
            waiting.popleft().start()
        self._is_scheduled = count > 0
        if count:
            loop.call_soon(self._next_turn, loop)


class ConnectionStarts:
    """The two lanes of one event loop: a flood of either kind leaves the other its share."""

    def __init__(self) -> None:
        self.first = RequestStarts()
        self.later = RequestStarts()
