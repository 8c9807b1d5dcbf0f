"""Collects applications' requests in windows, and chooses variant and pod of each by a plan.

A window holds the requests of one tenant under one policy. It closes when its time is over, when
waiting longer would cost a request its deadline, when it is full, or, unless it is fixed, at once
while a pod that holds a variant is idle. Tenants take turns in being planned. Requests for which
the planned pod has no slot left join the next window. Timers and plans are real or simulated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from common.timers import Timer, Timers
from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import is_idle
from registry.domain.model import ModelName
from variants.live_window import (
    ColdVariants,
    Variants,
    live_window,
    require_usable,
    variants_of,
    window_application,
)
from variants.look_client import Look
from variants.planning.window import (
    SHORT_CIRCUIT,
    Assignment,
    SelectionPlan,
    Window,
    WindowApplication,
    WindowRequest,
    class_probabilities,
    penalty_of_one,
)


@dataclass(slots=True, eq=False)
class ApplicationRequest:
    """Times in seconds; the arrival on the registry's clock, the deadline from it."""

    id: str
    application: ApplicationSpec
    arrival_s: float
    deadline_s: float
    policy: str
    look: Look = field(default_factory=Look)
    on_selected: Callable[[Selection], object] = lambda _: None
    variants: Variants = field(init=False)
    """Set when it joins a window."""
    is_over: bool = False
    """It has its selection, or nobody waits for it."""
    plans: int = 0
    """That selected its variant: another one is made where the pod has no slot after all."""

    def in_window(self, id_: str) -> WindowRequest:
        """With the labels of the nearest examples, summed over the request's rows."""
        rows = self.look.rows
        return WindowRequest(
            id_,
            str(self.application.name),
            self.arrival_s,
            self.deadline_s,
            tuple(map(sum, zip(*rows, strict=True))) if rows else None,
            self.look.is_answerable,
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """How a request is served, and what is expected of it."""

    assignment: Assignment
    """Without a worker: by the variant's routing policy."""
    variant: ModelName | None
    """None: the look at the data answers."""


def explained(
    request: ApplicationRequest, assignment: Assignment, window: Window
) -> dict[str, Any]:
    """A planned request as JSON, for `pilotlight explain`: its window, candidates, posterior."""
    spec, evidence = request.application, request.in_window(request.id).evidence
    application = window.application(str(spec.name))
    posterior = None
    if evidence is not None:
        theta = class_probabilities(evidence).tolist()
        posterior = {name: round(each, 4) for name, each in zip(spec.classes, theta, strict=True)}
    candidates = []
    for profile in application.variants:
        accuracy, worth = profile.accuracy_for(evidence), None
        soonest_s = window.soonest_s(profile.name, request.arrival_s, is_warm=False)
        if soonest_s is not None:
            worth = accuracy * (1.0 - penalty_of_one(spec.penalty, request.deadline_s, soonest_s))
        candidates.append(
            {
                "variant": profile.name,
                "profiled_accuracy": round(profile.accuracy, 6),
                "expected_accuracy": round(accuracy, 6),
                "soonest_s": _rounded(soonest_s),
                "soonest_utility": _rounded(worth),
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


logger = logging.getLogger(__name__)

Key = tuple[str, str]
Plan = Callable[[str, Window, Callable[[SelectionPlan | None], object]], None]
"""Calls back with a window's plan by a policy, now or later; None: no pod can run a variant."""
Explain = Callable[[str, str, Callable[[], dict[str, Any]]], object]
"""Keeps why a request, by its application and id, is served so: what gives that as JSON."""

MAX_REQUESTS: Final = 64
"""Of a window; planning takes some 10 ms for 24."""
MAX_PLANS: Final = 8
"""Of one request; then its variant's routing policy places it."""
REPLAN_S: Final = 0.01
"""Least time between two plans for requests that found no slot."""


@dataclass(slots=True, eq=False)
class _OpenWindow:
    pending: list[ApplicationRequest] = field(default_factory=list)
    timer: Timer | None = None
    closes_s: float = float("inf")
    is_carried: bool = False
    """It holds requests that found no slot."""
    is_ready: bool = False


@dataclass(eq=False)
class OpenWindows:
    """The windows of one gateway. Decides on `state`, which must not change during a call."""

    state: ClusterState
    plan: Plan
    load: Callable[[ModelName, str], object]
    """A variant at a pod, in the background."""
    timers: Timers
    now_s: Callable[[], float]
    """The registry's clock."""
    explain: Explain = lambda *_: None

    def __post_init__(self) -> None:
        self._variants: dict[ModelName, Variants] = {}
        """By application, of `_version` of the models, applications and profiles."""
        self._version = -1
        self._cold = ColdVariants()
        self._open: dict[Key, _OpenWindow] = {}
        self._turns: dict[str, int] = {}
        """By tenant: the number of its last plan."""
        self._plans = 0
        self._is_planning = False

    def join(self, request: ApplicationRequest) -> None:
        """Let a request wait for a plan. Raises NoUsableVariant."""
        application = request.application
        variants = request.variants = self._variants_of(application)
        require_usable(application, variants)
        request.is_over = False
        window = self._add((application.name.namespace, request.policy), request)
        is_early = not application.is_window_fixed and any(
            is_idle(pod) and pod.has_free_slot for _, pod in variants.warm(self.state)
        )
        if is_early or len(window.pending) >= MAX_REQUESTS:
            self._make_ready(window)
        else:
            self._close_by(window, self._patience_s(request))

    async def select(self, request: ApplicationRequest) -> Selection:
        """Wait until the request's window is planned. Raises NoUsableVariant."""
        chosen: asyncio.Future[Selection] = asyncio.get_running_loop().create_future()
        request.on_selected = partial(_choose, chosen)
        self.join(request)
        try:
            return await chosen
        finally:
            request.is_over = True

    def notify_change(self) -> None:
        """Plan what found no slot again: the cluster changed, or a request ended."""
        for window in self._open.values():
            if window.is_carried and not window.is_ready:
                self._close_by(window, REPLAN_S)

    def _variants_of(self, application: ApplicationSpec) -> Variants:
        if self._version != self.state.models_version:
            self._version = self.state.models_version
            self._variants.clear()
        if application.name not in self._variants:
            self._variants[application.name] = variants_of(application, self.state)
        return self._variants[application.name]

    def _add(self, key: Key, request: ApplicationRequest) -> _OpenWindow:
        window = self._open.setdefault(key, _OpenWindow())
        window.pending.append(request)
        return window

    def _patience_s(self, request: ApplicationRequest) -> float:
        """How long the request may wait: less than its window if its deadline would be missed."""
        application = request.application
        if application.is_window_fixed:
            return application.window_s
        holds = [
            pod.estimates[spec.key].stages.hold_s for spec, pod in request.variants.warm(self.state)
        ]
        waited_s = self.now_s() - request.arrival_s
        spare_s = request.deadline_s - waited_s - min(holds, default=0.0)
        return max(0.0, min(application.window_s, spare_s))

    def _close_by(self, window: _OpenWindow, delay_s: float) -> None:
        time_s = self.now_s() + delay_s
        if time_s < window.closes_s and not window.is_ready:
            if window.timer is not None:
                window.timer.cancel()
            window.closes_s = time_s
            window.timer = self.timers.after(delay_s, self._make_ready, window)

    # Planning, one window in each turn

    def _make_ready(self, window: _OpenWindow) -> None:
        """Also called by timers that cannot be cancelled, for windows that are closed."""
        window.is_ready = True
        if not self._is_planning:
            self._is_planning = True
            self.timers.after(0.0, self._plan_next, None)

    def _plan_next(self, _: None) -> None:
        ready = [key for key, window in self._open.items() if window.is_ready]
        if not ready:
            self._is_planning = False
            return
        key = min(ready, key=lambda each: (self._turns.get(each[0], 0), each))
        self._plans += 1
        self._turns[key[0]] = self._plans
        closed = self._open.pop(key)
        if closed.timer is not None:
            closed.timer.cancel()
        waiting = [each for each in closed.pending if not each.is_over]
        if not waiting:
            self.timers.after(0.0, self._plan_next, None)
            return
        try:
            window = live_window(
                [each.in_window(str(at)) for at, each in enumerate(waiting)],
                self._applications(waiting),
                self.state,
                self.now_s(),
            )
        except Exception:  # a mistake of ours must not hold up later windows
            logger.exception("a window cannot be planned", extra={"policy": key[1]})
            self._route(waiting)
            return

        def follow(plan: SelectionPlan | None) -> None:
            try:
                if plan is not None:
                    for variant, pod in self._cold.record(window, plan):
                        self.load(variant, pod)
                    self._follow(key, plan, window, waiting)
            finally:
                carried = set(self._open[key].pending if key in self._open else ())
                self._route([each for each in waiting if each not in carried])

        self.plan(key[1], window, follow)

    def _route(self, unplanned: Sequence[ApplicationRequest]) -> None:
        """Requests that no plan has: without a pod, one may be started. Then the next window."""
        for each in unplanned:
            if not each.is_over:
                _select(each, _unplanned(each))
        self.timers.after(0.0, self._plan_next, None)

    def _applications(self, waiting: Sequence[ApplicationRequest]) -> list[WindowApplication]:
        """Those of the requests, each as its first request knows it, with the latest look's."""
        asking: dict[ModelName, list[ApplicationRequest]] = {}
        for each in waiting:
            asking.setdefault(each.application.name, []).append(each)
        found = []
        for requests in asking.values():
            looks = [each.look.accuracy for each in requests if each.look.accuracy is not None]
            found.append(
                window_application(
                    requests[0].application,
                    requests[0].variants,
                    look_accuracy=looks[-1] if looks else None,
                )
            )
        return found

    def _follow(
        self, key: Key, plan: SelectionPlan, window: Window, waiting: Sequence[ApplicationRequest]
    ) -> None:
        """Give requests their variants and pods in planned order, as long as pods have slots."""
        free = {name: pod.slots - pod.slots_busy for name, pod in self.state.pods.items()}
        carried = []
        for assignment in plan.assignments:
            at = int(assignment.request)
            request = waiting[at]
            if request.is_over:  # it was cancelled meanwhile
                continue
            self.explain(
                str(request.application.name),
                request.id,
                partial(explained, request, assignment, window),
            )
            if assignment.variant == SHORT_CIRCUIT:
                is_answered = window.requests[at].may_short_circuit
                _select(
                    request, Selection(assignment, None) if is_answered else _unplanned(request)
                )
            elif free.get(assignment.worker, 0) <= 0:
                carried.append(request)
            else:
                free[assignment.worker] -= 1
                _select(request, _planned(request, assignment))
        for request in carried:
            joined = self._add(key, request)
            joined.is_carried = True
            self._close_by(joined, request.application.window_s)


def _choose(chosen: asyncio.Future[Selection], selection: Selection) -> None:
    """A plan may come after the request was cancelled and before its task has seen that."""
    if not chosen.done():
        chosen.set_result(selection)


def _select(request: ApplicationRequest, selection: Selection) -> None:
    request.is_over = True
    request.plans += 1
    request.on_selected(selection)


def _planned(request: ApplicationRequest, assignment: Assignment) -> Selection:
    if request.plans + 1 >= MAX_PLANS:
        assignment = replace(assignment, worker="")
    variant = ModelName(request.application.name.namespace, assignment.variant)
    return Selection(assignment, variant)


def _unplanned(request: ApplicationRequest) -> Selection:
    """The most accurate variant, routed as a request to it would be."""
    spec, profile = max(
        request.variants.usable, key=lambda each: (each[1].accuracy, each[0].name.name)
    )
    assignment = Assignment(request.id, profile.name, "", 0.0, profile.accuracy, 0.0)
    return Selection(assignment, spec.name)
