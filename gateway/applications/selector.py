"""Selections for coroutines: the open windows in real time, planned beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from gateway.applications.application_request import ApplicationRequest, Selection, explained
from gateway.applications.open_windows import OpenWindows
from gateway.applications.window_planner import WindowPlanner
from gateway.routing.timers import Timers
from gateway.selection.window import Assignment, Window
from gateway.telemetry.explanations import Explanations
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
        self._windows = OpenWindows(state, planner.plan, load, timers, now_s, self._explain)
        self.notify_change = self._windows.notify_change

    async def select(self, request: ApplicationRequest) -> Selection:
        """Wait until the request's window is planned. Raises NotReady without a usable variant."""
        chosen: asyncio.Future[Selection] = asyncio.get_running_loop().create_future()
        request.on_selected = partial(_choose, chosen)
        self._windows.join(request)
        try:
            return await chosen
        finally:
            request.is_over = True

    def _explain(self, request: ApplicationRequest, assignment: Assignment, window: Window) -> None:
        explain = partial(explained, request, assignment, window)
        self._explanations.record_selection(str(request.application.name), request.id, explain)


def _choose(chosen: asyncio.Future[Selection], selection: Selection) -> None:
    """A plan may come after the request was cancelled and before its task has seen that."""
    if not chosen.done():
        chosen.set_result(selection)
