"""Windows are planned in a real process, which is killed and stopped."""

import asyncio
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.request_task import LoopTimers
from registry.domain.application import AccuracyProfile, ApplicationSpec, SelectionPolicy
from registry.domain.model import ModelName
from tests.gateway.asynchronous import running
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from tests.variants.planning.windows import random_window
from variants.live import MAX_HERE, WindowPlanner, plan_or_none
from variants.look_client import Look, LookOutcome
from variants.open_windows import ApplicationRequest, OpenWindows, Plan
from variants.planning.search import plan_window
from variants.planning.window import SelectionPlan, Window

POLICY = SelectionPolicy.SNEAKPEEK
WINDOW = random_window(3, requests=8, has_evidence=True)
APPLICATION = ApplicationSpec(
    ModelName("default", "app"), ("no", "yes"), is_window_fixed=True, window_s=0.05
)
PLAN = plan_window(POLICY, WINDOW)


def _run(act: Callable[[WindowPlanner], Awaitable[None]]) -> None:
    async def run() -> None:
        planner = WindowPlanner()
        async with running(planner.run):
            await act(planner)

    asyncio.run(run())


def _plan(planner: WindowPlanner) -> asyncio.Future[SelectionPlan | None]:
    planned: asyncio.Future[SelectionPlan | None] = asyncio.get_running_loop().create_future()
    planner.plan(POLICY, WINDOW, planned.set_result)
    return planned


async def _started(planner: WindowPlanner) -> int:
    """Plans are made at once until the process runs; returns its id."""
    while not planner.process.child:
        assert _plan(planner).done()
        await asyncio.sleep(0.02)
    assert planner.process.pid is not None
    return planner.process.pid


def _windows(plan: Plan, *pods: PodSketch) -> OpenWindows:
    """Of a cluster with a variant that no pod holds."""
    state = cluster(*pods, measured={"infer": 0.1, "load:remote": 0.8})
    spec = declare(state, application="app")
    profile = AccuracyProfile(spec.key, APPLICATION.classes, ((9, 1), (1, 9)))
    state.accuracies[spec.name] = profile
    return OpenWindows(state, plan, lambda name, pod: None, LoopTimers(), lambda: NOW_S)


def _at_once(policy: str, window: Window, then: Callable[[SelectionPlan | None], object]) -> None:
    then(plan_or_none(policy, window))


def _request(name: str) -> ApplicationRequest:
    return ApplicationRequest(name, APPLICATION, NOW_S, 1.0, POLICY)


def test_the_process_makes_the_same_plan_and_the_loop_goes_on() -> None:
    async def act(planner: WindowPlanner) -> None:
        await _started(planner)
        planned = _plan(planner)
        assert not planned.done()
        assert await planned == PLAN

    _run(act)


def test_a_window_that_no_policy_can_plan_is_routed_without_a_plan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nothing: Any = None
    broken = replace(
        WINDOW, requests=tuple(replace(each, deadline_s=nothing) for each in WINDOW.requests)
    )
    assert plan_or_none(POLICY, broken) is None
    assert "a window cannot be planned" in caplog.text
    assert plan_or_none(POLICY, WINDOW) == PLAN


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


def test_without_the_process_no_window_is_planned_that_would_stop_the_gateway() -> None:
    for requests, is_planned in ((MAX_HERE, True), (MAX_HERE + 1, False)):
        found: list[SelectionPlan | None] = []
        window = random_window(3, requests=requests, has_evidence=True)
        WindowPlanner().plan(POLICY, window, found.append)
        assert [plan is not None for plan in found] == [is_planned]


def test_a_process_that_cannot_be_started_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(planner: WindowPlanner) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            assert _plan(planner).done()
            while planner.process.deaths == 0:  # noqa: ASYNC110 - counted by its own task
                await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await _started(planner)

    _run(act)


def test_requests_that_end_while_they_are_planned_do_not_stop_others() -> None:
    """Without a pod there is no plan; the process dies before it can say so."""

    async def act(planner: WindowPlanner) -> None:
        before = await _started(planner)
        windows = _windows(planner.plan)
        os.kill(before, signal.SIGSTOP)
        ended = [asyncio.create_task(windows.select(_request(name))) for name in "ab"]
        while not planner.process.pending:  # noqa: ASYNC110 - until their window is planned
            await asyncio.sleep(0.005)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        os.kill(before, signal.SIGKILL)
        selection = await windows.select(_request("c"))
        assert selection.variant == ModelName("default", "m")

    _run(act)


def test_a_plan_that_lacks_requests_or_cannot_be_followed_holds_up_none() -> None:
    """A plug-in's plan may lack some; an older look may have other classes than a cold variant."""

    def nothing(_policy: str, _window: Window, then: Callable[[SelectionPlan], object]) -> None:
        then(SelectionPlan(()))

    async def select(plan: Plan, *looks: tuple[float, ...]) -> None:
        windows = _windows(plan, PodSketch("pod-a"))
        asyncio.get_running_loop().set_exception_handler(lambda _loop, found: met.append(found))
        for row in looks:  # in windows of their own
            request = _request("a")
            request.policy, request.look = (
                SelectionPolicy.LO_EDF,
                Look(LookOutcome.SEEN, 0.5, (row,)),
            )
            async with asyncio.timeout(10):
                found = await windows.select(request)
            assert found.variant == ModelName("default", "m")

    good, other = (1.0, 0.0), (1.0, 0.0, 0.0)
    for plan, first, mistakes in ((nothing, good, 0), (_at_once, other, 1)):
        met: list[dict[str, Any]] = []
        asyncio.run(select(plan, first, good))
        assert len(met) == mistakes


def test_a_request_that_was_planned_eight_times_is_routed_as_its_variants_are() -> None:
    async def pods() -> list[str]:
        windows, request = _windows(_at_once, PodSketch("pod-a", "warm")), _request("a")
        return [(await windows.select(request)).assignment.worker for _ in range(8)]

    assert asyncio.run(pods()) == ["pod-a"] * 7 + [""]


def test_a_window_that_cannot_be_made_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A look whose rows are of different lengths, as a mistake of ours would give."""

    async def act() -> None:
        windows = _windows(_at_once, PodSketch("pod-a", "warm"))
        broken, good = _request("a"), _request("b")
        broken.look = Look(LookOutcome.SEEN, 0.5, ((1.0, 0.0), (1.0,)))
        async with asyncio.timeout(10):
            found = await windows.select(broken)
            assert (found.variant, found.assignment.worker) == (ModelName("default", "m"), "")
            assert (await windows.select(good)).assignment.worker == "pod-a"

    asyncio.run(act())
    assert "a window cannot be planned" in caplog.text
