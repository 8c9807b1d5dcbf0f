"""Runs a request's coroutine: from callbacks while it waits for a pod alone, else in a task.

A warm request has no task and no future: what it waits for calls `set_result`. What needs a task,
since asyncio's timeouts do, awaits `in_task` first; a coroutine that waits for anything else of
asyncio gets one by itself. The run ends the request at its deadline, or when its client leaves.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Generator, MutableSet
from dataclasses import dataclass
from math import ceil
from types import coroutine
from typing import Any, ClassVar, Final, Protocol

from common.timers import Timer, Timers
from gateway.errors import ClientClosedRequest, ShuttingDown, UpstreamTimeout

logger = logging.getLogger(__name__)

_SOON_S: Final = 1.0
_WIDTH_MS: Final = 10
"""How late a deadline may be noticed; one that is `_SOON_S` away or more, ten times as late."""


class LoopTimers:
    """Those of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def after(self, delay_s: float, do: Callable[[Any], object], argument: Any, /) -> Timer:
        if delay_s > 0:
            return self._loop.call_later(delay_s, do, argument)
        return self._loop.call_soon(do, argument)


class Expiring(Protocol):
    def on_deadline(self) -> None:
        """The deadline has passed."""


class Deadlines:
    """On one timer: most requests end before, and none costs a timer of its own."""

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
                try:
                    request.on_deadline()
                except Exception:
                    logger.exception("a request failed when it was ended at its deadline")
        self._timer = None
        if self._due_ms:
            self._set_timer()


class RequestRun:
    """Without closures: those that refer to each other are cycles, which are collected late."""

    __slots__ = (
        "_cause",
        "_coroutine",
        "_due",
        "_has_begun",
        "_is_paused",
        "_loop",
        "_running",
        "_task",
    )

    current: ClassVar[RequestRun | None] = None
    """The one whose coroutine runs now, without a task."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, running: MutableSet[Any] | None = None
    ) -> None:
        """`running`: has this object while the coroutine runs.

        Without a call of `start` the request runs in the task that calls `limit`.
        """
        self._loop = loop
        self._running = running
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_begun = True
        """The task has: until then it cannot be cancelled."""
        self._is_paused = False
        self._cause: type[Exception] | None = None
        self._due: set[Expiring] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine, now, until it waits; it handles its exceptions."""
        if self._running is not None:
            self._running.add(self)
        self._coroutine = work
        self._step(None)

    def _step(self, error: BaseException | None) -> None:
        work = self._coroutine
        assert work is not None
        outer, RequestRun.current = RequestRun.current, self
        try:
            waits_for = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            self._end()
        except BaseException:
            self._end()
            raise
        else:
            if waits_for is not self:
                self._has_begun = False
                self._task = self._loop.create_task(self._rest(work, waits_for))
        finally:
            RequestRun.current = outer

    async def _rest(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._has_begun = True
        try:
            await _continued(work, waits_for)
        finally:
            self._end()

    def _end(self) -> None:
        self._coroutine = None
        if self._running is not None:
            self._running.discard(self)

    # Waiting

    def __await__(self) -> Generator[RequestRun, None, None]:
        """Wait for `set_result`; of the run that is `current` only."""
        self._is_paused = True
        yield self

    def done(self) -> bool:
        return not self._is_paused

    def set_result(self, _: None) -> None:
        self._is_paused = False
        self._step(None)

    @coroutine
    def in_task(self) -> Generator[None, None, None]:
        """Go on in a task, from the next turn of the loop on, unless there is one."""
        if self._task is None and self._coroutine is not None:
            yield

    # The end

    def limit(self, deadlines: Deadlines, until_s: float, now_s: float) -> None:
        """End the request at loop time `until_s`."""
        if self._coroutine is None:
            self._task = asyncio.current_task(self._loop)
        self._due = deadlines.add(self, until_s, now_s)

    def unlimit(self) -> None:
        """Forget the deadline, and an own task: the reference would be a cycle."""
        if self._due is not None:
            self._due.discard(self)
        if self._coroutine is None:
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
        self._loop.call_soon(self._interrupt)

    def _interrupt(self) -> None:
        """Raise CancelledError where the coroutine waits."""
        if not self._has_begun:
            self._loop.call_soon(self._interrupt)
        elif self._task is not None:
            self._task.cancel()
        elif self._is_paused:
            self._is_paused = False
            self._step(asyncio.CancelledError())

    def take_cause(self, *, is_draining: bool) -> type[Exception] | None:
        """Why it was cancelled, with that of the task undone; None: something else cancelled it."""
        if self._cause is None and is_draining:
            self._cause = ShuttingDown
        if self._cause is not None and self._task is not None:
            self._task.uncancel()
        return self._cause


@coroutine
def _continued(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, None, None]:
    """The rest of a coroutine, for a task; it waits for a future now, or for the task itself."""
    is_ready, error = waits_for is None, None
    while True:
        try:
            if not is_ready:
                yield waits_for
        except BaseException as raised:  # the task was cancelled, or its loop is gone
            error, waits_for = raised, None  # which may be a future of that error
        is_ready = False
        try:
            waits_for = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
        finally:
            error = None  # kept in a frame of its traceback it would be a cycle


def waker(loop: asyncio.AbstractEventLoop) -> RequestRun | asyncio.Future[None]:
    """What the caller awaits next, and another wakes by `set_result`."""
    return RequestRun.current or loop.create_future()


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
