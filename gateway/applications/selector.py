"""Selections for coroutines: the open windows in real time, planned beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.applications.application_request import ApplicationRequest, Selection
from gateway.applications.open_windows import OpenWindows
from gateway.applications.window_planner import WindowPlanner
from gateway.routing.timers import Timers
from gateway.selection.utility import class_probabilities, penalty_of_one
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
        explain = partial(explain_selection, request, assignment, window)
        self._explanations.record_selection(str(request.application.name), request.id, explain)


def _choose(chosen: asyncio.Future[Selection], selection: Selection) -> None:
    """A plan may come after the request was cancelled and before its task has seen that."""
    if not chosen.done():
        chosen.set_result(selection)


def explain_selection(
    request: ApplicationRequest, assignment: Assignment, window: Window
) -> dict[str, Any]:
    """A planned request as JSON, for `pilotlight explain`: its window, candidates, posterior."""
    spec, evidence = request.application, request.in_window(request.id).evidence
    application = window.application(str(spec.name))
    posterior = None
    if evidence is not None:
        theta = class_probabilities(application.prior_weights, evidence).tolist()
        posterior = {name: round(each, 4) for name, each in zip(spec.classes, theta, strict=True)}
    candidates: list[dict[str, Any]] = []
    for profile in application.variants:
        accuracy = profile.accuracy_for(evidence, application.prior_weights)
        soonest_s = window.soonest_s(profile.name, request.arrival_s, is_warm=False)
        soonest: dict[str, float | None] = {"soonest_s": None, "soonest_utility": None}
        if soonest_s is not None:
            late = penalty_of_one(spec.penalty, request.deadline_s, soonest_s)
            soonest = {
                "soonest_s": round(soonest_s, 6),
                "soonest_utility": round(accuracy * (1.0 - late), 6),
            }
        candidates.append(
            {
                "variant": profile.name,
                "profiled_accuracy": round(profile.accuracy, 6),
                "expected_accuracy": round(accuracy, 6),
                **soonest,
            }
        )
    return {
        "application": str(spec.name),
        "policy": str(request.policy),
        "requests_in_window": len(window.requests),
        "workers": [each.name for each in window.workers],
        "variant": assignment.variant,
        "planned_pod": assignment.worker,
        "deadline_s": request.deadline_s,
        "waited_s": round(window.now_s - request.arrival_s, 6),
        "expected_completion_s": round(assignment.completion_s, 6),
        "expected_accuracy": round(assignment.accuracy, 6),
        "expected_utility": round(assignment.utility, 6),
        "look": str(request.look.outcome),
        "posterior": posterior,
        "candidates": candidates,
        "left_out": list(request.variants.problems),
    }
