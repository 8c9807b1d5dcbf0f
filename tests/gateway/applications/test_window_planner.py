"""Windows are planned in a real process, which is killed and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from gateway.applications.window_planner import WindowPlanner
from gateway.selection.selection_policies import plan_window
from registry.domain.application import SelectionPolicy
from tests.gateway.selection.windows import random_window

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.selection.window import SelectionPlan

POLICY = SelectionPolicy.SNEAKPEEK
WINDOW = random_window(3, requests=8, has_evidence=True)
PLAN = plan_window(POLICY, WINDOW)


def _run(act: Callable[[WindowPlanner], Awaitable[None]]) -> None:
    async def run() -> None:
        planner = WindowPlanner()
        task = asyncio.create_task(planner.run())
        try:
            async with asyncio.timeout(60):
                await act(planner)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def _plan(planner: WindowPlanner) -> asyncio.Future[SelectionPlan | None]:
    planned: asyncio.Future[SelectionPlan | None] = asyncio.get_running_loop().create_future()
    planner.plan(POLICY, WINDOW, planned.set_result)
    return planned


async def _started(planner: WindowPlanner) -> int:
    """Plans are made at once until the process runs; returns its id."""
    while not planner.process.is_connected:
        assert _plan(planner).done()
        await asyncio.sleep(0.02)
    assert planner.process.pid is not None
    return planner.process.pid


def test_the_process_makes_the_same_plan_and_the_loop_goes_on() -> None:
    async def act(planner: WindowPlanner) -> None:
        await _started(planner)
        planned = _plan(planner)
        assert not planned.done()
        assert await planned == PLAN

    _run(act)


def test_no_window_is_lost_with_a_killed_or_stopped_process() -> None:
    async def act(planner: WindowPlanner) -> None:
        for signal_number in (signal.SIGKILL, signal.SIGSTOP):
            before = await _started(planner)
            os.kill(before, signal_number)
            for planned in (_plan(planner), _plan(planner)):
                assert await planned == PLAN
            while planner.process.pid == before:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.02)

    _run(act)
