"""Cancels a request before its response: the client disconnected, or a timeout passed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.errors import BodyTooSlow, ShuttingDown, UpstreamTimeout
from gateway.http.client_request import ClientClosedRequest

if TYPE_CHECKING:
    from gateway.http.body import IncomingBody


class RequestCancellation:
    """Cancels the current task, which serves a request, and keeps the cause.

    An object with one timer and no closures: closures that refer to each other are cycles, and
    their garbage collection cost a tenth of the gateway's time.
    """

    __slots__ = ("_body", "_cause", "_loop", "_task", "_timer", "_until_s")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        body: IncomingBody,
        until_s: float,
        body_until_s: float,
    ) -> None:
        self._loop = loop
        self._task = asyncio.current_task(loop)
        self._body = body
        self._until_s = until_s
        self._cause: type[Exception] | None = None
        self._timer: asyncio.TimerHandle | None
        if body_until_s < until_s and not body.has_started:
            self._timer = self._loop.call_at(body_until_s, self._check_body)
        else:
            self._timer = self._loop.call_at(until_s, self._on_timeout)

    def _check_body(self) -> None:
        """At the body timeout: continue to the final timeout if the body has started."""
        if self._body.has_started:
            self._timer = self._loop.call_at(self._until_s, self._on_timeout)
        else:
            self._cancel(BodyTooSlow)

    def _on_timeout(self) -> None:
        self._cancel(UpstreamTimeout)

    def on_disconnect(self) -> None:
        self._cancel(ClientClosedRequest)

    def _cancel(self, cause: type[Exception]) -> None:
        if self._cause is None and self._task is not None:
            self._cause = cause
            self._task.cancel()

    def take_cause(self, *, is_draining: bool) -> type[Exception] | None:
        """The cause, with the task's cancellation undone; None: something else cancelled the task.

        At the end of its drain the server cancels the tasks that still run.
        """
        if self._cause is None and is_draining:
            self._cause = ShuttingDown
        if self._cause is not None and self._task is not None:
            self._task.uncancel()
        return self._cause

    def close(self) -> None:
        """Stop the timer and drop the reference to the task."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._task = None
