"""The task of a request: its deadline, its end when its client leaves, and the shutdown of all.

Most requests have none (`gateway.dispatch.warm_request`).
"""

import asyncio
from collections.abc import Callable, Coroutine, MutableSet
from dataclasses import dataclass
from typing import Any

from common.timers import Timer
from gateway.errors import ClientClosedRequest, ShuttingDown, UpstreamTimeout


class LoopTimers:
    """Those of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def after(self, delay_s: float, do: Callable[[Any], object], argument: Any, /) -> Timer:
        if delay_s > 0:
            return self._loop.call_later(delay_s, do, argument)
        return self._loop.call_soon(do, argument)


class RequestRun:
    """The task of a request, which ends at its deadline, or when its client leaves."""

    __slots__ = ("_cause", "_has_begun", "_loop", "_running", "_task", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, running: MutableSet[Any] | None = None
    ) -> None:
        """`running`: has this object while its task runs.

        Without a call of `start` the request runs in the task that calls `limit`.
        """
        self._loop = loop
        self._running = running
        self._task: asyncio.Task[None] | None = None
        self._has_begun = True
        """The task has: until then it cannot be cancelled."""
        self._cause: type[Exception] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine in a task; it handles its exceptions."""
        if self._running is not None:
            self._running.add(self)
        self._has_begun = False
        self._task = self._loop.create_task(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._has_begun = True
        try:
            await work
        finally:
            self._task = None  # the reference would be a cycle
            if self._running is not None:
                self._running.discard(self)

    def limit(self, until_s: float) -> None:
        """End the request at loop time `until_s`."""
        self._task = self._task or asyncio.current_task(self._loop)
        self._timer = self._loop.call_at(until_s, self.on_deadline)

    def unlimit(self) -> None:
        """Forget the deadline, and the task of others that it runs in."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running is None:
            self._task = None

    def on_deadline(self) -> None:
        self._end_for(UpstreamTimeout)

    def on_disconnect(self) -> None:
        self._end_for(ClientClosedRequest)

    def _end_for(self, cause: type[Exception]) -> None:
        if self._cause is None:
            self._cause = cause
            self._interrupt()

    def cancel(self, msg: str | None = None) -> None:
        """As a task's: the server cancels what still runs at the end of its drain."""
        self._interrupt()

    def _interrupt(self) -> None:
        """Raise CancelledError where the task waits."""
        if not self._has_begun:
            self._loop.call_soon(self._interrupt)
        elif self._task is not None:
            self._task.cancel()

    def take_cause(self, *, is_draining: bool) -> type[Exception] | None:
        """Why it was cancelled, with that of the task undone; None: something else cancelled it."""
        if self._cause is None and is_draining:
            self._cause = ShuttingDown
        if self._cause is not None and self._task is not None:
            self._task.uncancel()
        return self._cause


@dataclass(slots=True)
class Shutdown:
    """The gateway's progress in shutting down, read by all parts that serve requests."""

    is_leaving: bool = False
    """Requests are served, but each response closes its connection."""
    is_draining: bool = False
    """New requests are rejected."""

    @property
    def has_begun(self) -> bool:
        return self.is_leaving or self.is_draining

    def refuse_new(self) -> None:
        """Raises ShuttingDown while the gateway drains."""
        if self.is_draining:
            raise ShuttingDown("the gateway is shutting down", retry_after_s=1.0)
