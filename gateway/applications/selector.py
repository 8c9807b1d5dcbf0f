"""Selections for coroutines: the open windows in real time, planned beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.applications.application_request import ApplicationRequest, Selection
from gateway.applications.live_window import PlannedApplication
from gateway.applications.open_windows import OpenWindows, PendingSelection
from gateway.applications.window_planner import WindowPlanner
from gateway.routing.timers import Timers
from gateway.selection.utility import accuracy_by_class_mix, class_probabilities, penalty_of_one
from gateway.selection.window import Assignment, SelectionPlan, Window
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
        self, policy: str, window: Window,
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


def explain_selection(
    request: ApplicationRequest, planned: PlannedApplication, assignment: Assignment,
    window: Window,
) -> dict[str, Any]:  # fmt: skip
    """A planned request as JSON, for `pilotlight explain`: its window, candidates, posterior."""
    evidence = request.evidence
    theta = None
    if evidence is not None:
        theta = class_probabilities(planned.alpha, evidence)
    accuracies = [
        (
            profile,
            profile.accuracy
            if theta is None
            else float(accuracy_by_class_mix(profile.recalls, theta)),
        )
        for _, profile in planned.variants.usable
    ]
    return {
        "application": str(request.application.name),
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
        "posterior": None
        if theta is None
        else {
            name: round(share, 4)
            for name, share in zip(request.application.classes, theta.tolist(), strict=True)
        },
        "candidates": [
            {
                "variant": profile.name,
                "profiled_accuracy": round(profile.accuracy, 6),
                "expected_accuracy": round(accuracy, 6),
                **_if_first(profile.name, request, window, accuracy=accuracy),
            }
            for profile, accuracy in accuracies
        ],
        "left_out": list(planned.variants.problems),
    }


def _if_first(
    variant: str, request: ApplicationRequest, window: Window, *, accuracy: float
) -> dict[str, float | None]:
    """Completion from arrival and utility of a variant that goes first; None: no pod can run it."""
    ends = [
        max(worker.free_s, window.now_s)
        + worker.swap_s.get(variant, 0.0)
        + worker.setup_s.get(variant, 0.0)
        + worker.latency_s[variant]
        + worker.around_s.get(variant, 0.0)
        - request.arrival_s
        for worker in window.workers
        if variant in worker.latency_s
    ]
    if not ends:
        return {"soonest_s": None, "soonest_utility": None}
    late = penalty_of_one(request.application.penalty, request.deadline_s, min(ends))
    return {
        "soonest_s": round(min(ends), 6),
        "soonest_utility": round(accuracy * (1.0 - late), 6),
    }
