"""What ends an exchange before its answer: its client leaves, or its time is up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.errors import BodyTooSlow, ShuttingDown, UpstreamTimeout
from gateway.http.client_request import ClientDisconnected

if TYPE_CHECKING:
    from gateway.dispatch.exchange import Exchange


class RequestCancellation:
    """Cancels the task that runs an exchange, and remembers why.

    An object with one timer and no closures: closures that know each other are cycles, and what
    the collector had to do for them cost a tenth of the gateway's time.
    """

    __slots__ = ("_cause", "_exchange", "_loop", "_task", "_timer", "_until_s")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        until_s: float,
        body_until_s: float,
    ) -> None:
        self._loop = loop
        self._task = asyncio.current_task(loop)
        self._exchange = exchange
        self._until_s = until_s
        self._cause: type[Exception] | None = None
        self._timer: asyncio.TimerHandle | None
        if body_until_s < until_s and exchange.is_without_body:
            self._timer = self._loop.call_at(body_until_s, self._look_for_body)
        else:
            self._timer = self._loop.call_at(until_s, self._time_is_up)

    def _look_for_body(self) -> None:
        """At the body timeout, something of the body must be here; later, the answer."""
        if self._exchange.is_without_body:
            self._end(BodyTooSlow)
        else:
            self._timer = self._loop.call_at(self._until_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._end(UpstreamTimeout)

    def client_gone(self) -> None:
        """The client closed its connection."""
        self._end(ClientDisconnected)

    def _end(self, why: type[Exception]) -> None:
        if self._cause is None and self._task is not None:
            self._cause = why
            self._task.cancel()

    def own_cause(self, *, is_draining: bool) -> type[Exception] | None:
        """Why the task was cancelled, with the cancellation taken back; None: not our business.

        The server cancels what is still running at the end of its drain.
        """
        if self._cause is None and is_draining:
            self._cause = ShuttingDown
        if self._cause is not None and self._task is not None:
            self._task.uncancel()
        return self._cause

    def stop(self) -> None:
        """The exchange is over; nothing must hold on to it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._task = None
