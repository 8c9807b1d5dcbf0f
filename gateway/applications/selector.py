"""Selections for coroutines: the open windows in real time, planned beside the event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from gateway.applications.explained import explain_selection
from gateway.applications.open_windows import OpenWindows, PendingSelection

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.applications.application_request import ApplicationRequest, Selection
    from gateway.applications.live_window import PlannedApplication
    from gateway.applications.window_planner import WindowPlanner
    from gateway.routing.timers import Timers
    from gateway.selection.window import Assignment, SelectionPlan, Window
    from gateway.telemetry.explanations import Explanations
    from registry.domain.application import SelectionPolicy
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName


class ApplicationSelector:
    """The open windows of one gateway."""

    def __init__(
        self,
        state: ClusterState,
        explanations: Explanations,
        now_s: Callable[[], float],
        load: Callable[[ModelName, str], object],
        planner: WindowPlanner,
        timers: Timers,
    ) -> None:
        """`now_s`: the registry's clock; `load` a variant at a pod in the background."""
        self._explanations = explanations
        self._loop = asyncio.get_running_loop()
        self._planner = planner
        self.load = load
        self._windows = OpenWindows(state, self, timers, now_s)
        self.notify_change = self._windows.notify_change

    async def select(self, request: ApplicationRequest) -> Selection:
        """Wait until the request's window is planned. Raises NotReady without a usable variant."""
        chosen: asyncio.Future[Selection] = self._loop.create_future()
        pending = PendingSelection(request, partial(_choose, chosen))
        self._windows.join(pending)
        try:
            return await chosen
        finally:
            pending.is_over = True

    # WindowDriver

    def plan(
        self, policy: SelectionPolicy, window: Window,
        then: Callable[[SelectionPlan | None], object],
    ) -> None:  # fmt: skip
        self._planner.plan(policy, window, then)

    def explain(
        self, request: ApplicationRequest, planned: PlannedApplication, assignment: Assignment,
        window: Window,
    ) -> None:  # fmt: skip
        self._explanations.record_selection(
            str(request.application.name),
            request.id,
            partial(explain_selection, request, planned, assignment, window),
        )


def _choose(chosen: asyncio.Future[Selection], selection: Selection) -> None:
    """A plan may come after the request was cancelled and before its task has seen that."""
    if not chosen.done():
        chosen.set_result(selection)
