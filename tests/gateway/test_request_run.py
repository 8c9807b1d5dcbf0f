"""When a request's coroutine has a task, and how it ends early in each case."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.request_task import Deadlines, LoopTimers, RequestRun, waker
from tests.gateway.asynchronous import run_async
from tests.gateway.placer_harness import eventually


class Work:
    """A coroutine that waits once; the steps that it has passed, and whether in a task."""

    def __init__(self, wait: Callable[[Work], Awaitable[object]]) -> None:
        self.running: set[Any] = set()
        self.run = RequestRun(asyncio.get_running_loop(), self.running)
        self.steps: list[tuple[str, bool]] = []
        self.wakeup: RequestRun | asyncio.Future[None] | None = None
        self.cause: type[Exception] | None = None
        self._wait = wait

    def start(self, until_s: float = 60.0) -> None:
        now_s = asyncio.get_running_loop().time()
        self.run.limit(Deadlines(LoopTimers(), lambda: now_s), now_s + until_s, now_s)
        self.run.start(self._work())

    async def _work(self) -> None:
        self._step("began")
        try:
            await self._wait(self)
            self._step("waited")
        except asyncio.CancelledError:
            self._step("cancelled")
            self.cause = self.run.take_cause(is_draining=False)
        finally:
            self.run.unlimit()

    def _step(self, name: str) -> None:
        self.steps.append((name, asyncio.current_task() is not None))


async def for_callback(work: Work) -> None:
    work.wakeup = waker(asyncio.get_running_loop())
    await work.wakeup


async def for_task(work: Work) -> None:
    await work.run.in_task()
    await for_callback(work)


async def for_timeout(work: Work) -> None:
    await work.run.in_task()
    async with asyncio.timeout(60):
        await for_callback(work)


async def begin(work: Work) -> None:
    """Run the work, which this test's own task must not take part in, until it waits."""
    asyncio.get_running_loop().call_soon(work.start)
    await eventually(lambda: work.wakeup is not None)


@pytest.mark.parametrize(
    ("wait", "is_in_task"), [(for_callback, False), (for_task, True), (for_timeout, True)]
)
@run_async
async def test_work_has_a_task_only_where_it_asks_for_one(
    wait: Callable[[Work], Awaitable[object]], is_in_task: bool
) -> None:
    work = Work(wait)
    await begin(work)
    assert work.running == {work.run}
    assert isinstance(work.wakeup, asyncio.Future) is is_in_task
    assert work.wakeup is not None
    asyncio.get_running_loop().call_soon(work.wakeup.set_result, None)
    await eventually(lambda: not work.running)
    assert work.steps == [("began", False), ("waited", is_in_task)]


@run_async
async def test_work_that_waits_for_a_future_gets_a_task() -> None:
    future = asyncio.get_running_loop().create_future()

    async def wait(_: Work) -> None:
        await future

    work = Work(wait)
    asyncio.get_running_loop().call_soon(work.start)
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future
    await eventually(lambda: not work.running)
    assert work.steps == [("began", False), ("waited", True)]


@pytest.mark.parametrize("wait", [for_callback, for_task, for_timeout])
@run_async
async def test_a_client_that_leaves_ends_the_work(
    wait: Callable[[Work], Awaitable[object]],
) -> None:
    work = Work(wait)
    await begin(work)
    asyncio.get_running_loop().call_soon(work.run.on_disconnect)
    await eventually(lambda: not work.running)
    assert work.steps[-1][0] == "cancelled"
    assert work.cause is not None
    assert work.cause.__name__ == "ClientClosedRequest"


@run_async
async def test_work_is_ended_before_its_task_has_begun() -> None:
    work = Work(for_task)

    def start_and_leave() -> None:
        work.start()
        work.run.on_disconnect()

    asyncio.get_running_loop().call_soon(start_and_leave)
    await asyncio.sleep(0)
    await eventually(lambda: not work.running)
    assert work.steps == [("began", False), ("cancelled", True)]


class Refused(Exception):
    """Of which weak references can be made."""


@run_async
async def test_an_error_is_freed_when_the_work_has_handled_it() -> None:
    errors: list[weakref.ref[Refused]] = []

    def refuse(future: asyncio.Future[None]) -> None:
        error = Refused()
        errors.append(weakref.ref(error))
        future.set_exception(error)

    async def for_refusal(work: Work) -> None:
        loop = asyncio.get_running_loop()
        work.wakeup = loop.create_future()
        loop.call_soon(refuse, work.wakeup)
        with contextlib.suppress(Refused):
            await work.wakeup

    work = Work(for_refusal)
    gc.disable()
    try:
        await begin(work)
        await eventually(lambda: not work.running)
        work.wakeup = None
        assert errors[0]() is None
    finally:
        gc.enable()
