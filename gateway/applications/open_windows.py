"""Collects applications' requests in windows, and chooses variant and pod of each by a plan.

A window holds the requests of one tenant under one policy. It closes when its time is over, when
waiting longer would cost a request its deadline, when it is full, or, unless it is fixed, at once
while a pod that holds a variant is idle. Tenants take turns in being planned. Requests for which
the planned pod has no slot left join the next window. Without tasks or I/O: timers are real or
virtual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gateway.applications.application_request import ApplicationRequest, Selection
from gateway.applications.cold_variants import ColdVariants
from gateway.applications.live_window import (
    PlannedApplication,
    VariantCache,
    Variants,
    has_idle_pod,
    live_window,
)
from gateway.errors import NotReady
from gateway.routing.timers import Timer, Timers
from gateway.selection.window import SHORT_CIRCUIT, Assignment, SelectionPlan, Window, WindowRequest
from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName

Key = tuple[str, str]


MAX_REQUESTS: Final = 64
"""Of a window; planning takes some 10 ms for 24."""
MAX_PLANS: Final = 8
"""Of one request; then its variant's routing policy places it."""
REPLAN_S: Final = 0.01
"""Least time between two plans for requests that found no slot."""
_WINDOWS: Final = 0.2
"""Weight of the latest window in the mean number of an application's requests."""


class PendingSelection:
    """A request that waits for its window's plan."""

    __slots__ = ("is_over", "on_selected", "request", "variants")

    variants: Variants
    """Set when it joins a window."""

    def __init__(
        self, request: ApplicationRequest, on_selected: Callable[[Selection], object]
    ) -> None:
        self.request = request
        self.on_selected = on_selected
        self.is_over = False
        """It has its selection, or nobody waits for it."""


class WindowDriver(Protocol):
    """Plans windows, and carries out what belongs to a plan."""

    def plan(
        self, policy: str, window: Window,
        then: Callable[[SelectionPlan | None], object],
    ) -> None:  # fmt: skip
        """Call `then` with the plan, now or later; None: no pod can run a variant."""

    def explain(
        self, request: ApplicationRequest, planned: PlannedApplication, assignment: Assignment,
        window: Window,
    ) -> None:  # fmt: skip
        """Keep why a request is served as it is."""

    def load(self, variant: ModelName, pod: str) -> object:
        """Begin to load a variant in the background."""


@dataclass(slots=True, eq=False)
class _OpenWindow:
    pending: list[PendingSelection] = field(default_factory=list)
    timer: Timer | None = None
    closes_s: float = float("inf")
    is_carried: bool = False
    """It holds requests that found no slot."""
    is_ready: bool = False


class OpenWindows:
    """The windows of one gateway. Decides on `state`, which must not change during a call."""

    def __init__(
        self, state: ClusterState, driver: WindowDriver, timers: Timers, now_s: Callable[[], float]
    ) -> None:
        self._state = state
        self._driver = driver
        self._timers = timers
        self._now_s = now_s
        self._variants = VariantCache(state)
        self._cold = ColdVariants()
        self._open: dict[Key, _OpenWindow] = {}
        self._turns: dict[str, int] = {}
        """By tenant: the number of its last plan."""
        self._plans = 0
        self._is_planning = False
        self._requests_per_window: dict[ModelName, float] = {}

    def join(self, pending: PendingSelection) -> None:
        """Let a request wait for a plan. Raises NotReady without a usable variant."""
        application = pending.request.application
        variants = pending.variants = self._variants.of(application)
        if not variants.usable:
            raise NotReady(no_variant(application, variants), retry_after_s=1.0)
        window = self._add((application.name.namespace, pending.request.policy), pending)
        is_early = not application.is_window_fixed and has_idle_pod(variants, self._state)
        if is_early or len(window.pending) >= MAX_REQUESTS:
            self._make_ready(window)
        else:
            self._close_by(window, self._patience_s(pending))

    def notify_change(self) -> None:
        """Plan what found no slot again: the cluster changed, or a request ended."""
        for window in self._open.values():
            if window.is_carried and not window.is_ready:
                self._close_by(window, REPLAN_S)

    def _add(self, key: Key, pending: PendingSelection) -> _OpenWindow:
        window = self._open.setdefault(key, _OpenWindow())
        window.pending.append(pending)
        return window

    def _patience_s(self, pending: PendingSelection) -> float:
        """How long the request may wait: less than its window if its deadline would be missed."""
        request, application = pending.request, pending.request.application
        if application.is_window_fixed:
            return application.window_s
        holds = [
            pod.estimates[spec.key].stages.hold_s
            for spec, _ in pending.variants.usable
            for pod in self._state.warm(spec.key)
        ]
        waited_s = self._now_s() - request.arrival_s
        spare_s = request.deadline_s - waited_s - min(holds, default=0.0)
        return max(0.0, min(application.window_s, spare_s))

    def _close_by(self, window: _OpenWindow, delay_s: float) -> None:
        time_s = self._now_s() + delay_s
        if time_s < window.closes_s and not window.is_ready:
            if window.timer is not None:
                window.timer.cancel()
            window.closes_s = time_s
            window.timer = self._timers.after(delay_s, self._make_ready, window)

    # Planning, one window in each turn

    def _make_ready(self, window: _OpenWindow) -> None:
        """Also called by timers that cannot be cancelled, for windows that are closed."""
        window.is_ready = True
        if not self._is_planning:
            self._is_planning = True
            self._timers.after(0.0, self._plan_next, None)

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
            self._timers.after(0.0, self._plan_next, None)
            return
        applications = self._applications(waiting)
        requests = [
            WindowRequest(
                f"{at}", str(each.request.application.name), each.request.arrival_s,
                each.request.deadline_s, each.request.evidence, each.request.may_short_circuit,
            )
            for at, each in enumerate(waiting)
        ]  # fmt: skip
        window = live_window(requests, list(applications.values()), self._state, self._now_s())

        def follow(plan: SelectionPlan | None) -> None:
            if plan is None:  # there is no pod: one may be started
                for each in waiting:
                    if not each.is_over:
                        _select(each, _unplanned(each))
            else:
                self._pay_loads(window, plan)
                self._follow(key, plan, window, waiting, applications)
            self._timers.after(0.0, self._plan_next, None)

        self._driver.plan(key[1], window, follow)

    def _applications(self, waiting: list[PendingSelection]) -> dict[str, PlannedApplication]:
        found: dict[str, PlannedApplication] = {}
        for each in waiting:
            spec = each.request.application
            accuracy = each.request.look.accuracy
            name = str(spec.name)
            if name not in found:
                count = sum(other.request.application.name == spec.name for other in waiting)
                before = self._requests_per_window.get(spec.name, float(count))
                mean = before + _WINDOWS * (count - before)
                self._requests_per_window[spec.name] = mean
                found[name] = PlannedApplication(spec, each.variants, accuracy, mean)
            elif accuracy is not None:
                found[name] = replace(found[name], look_accuracy=accuracy)
        return found

    def _follow(
        self, key: Key, plan: SelectionPlan, window: Window, waiting: list[PendingSelection],
        applications: dict[str, PlannedApplication],
    ) -> None:  # fmt: skip
        """Give requests their variants and pods in planned order, as long as pods have slots."""
        free = {name: pod.slots - pod.slots_busy for name, pod in self._state.pods.items()}
        until_s: dict[str, float] = {}
        carried = []
        for assignment in plan.assignments:
            pending = waiting[int(assignment.request)]
            if pending.is_over:  # it was cancelled meanwhile
                continue
            request = pending.request
            planned = applications[str(request.application.name)]
            self._driver.explain(request, planned, assignment, window)
            if assignment.variant == SHORT_CIRCUIT:
                answered = Selection(assignment, request.policy, None, alpha=planned.alpha)
                is_answered = request.may_short_circuit
                _select(pending, answered if is_answered else _unplanned(pending))
            elif free.get(assignment.worker, 0) <= 0:
                carried.append(pending)
            else:
                free[assignment.worker] -= 1
                _select(pending, _selection(request, assignment, until_s))
        for pending in carried:
            joined = self._add(key, pending)
            joined.is_carried = True
            self._close_by(joined, pending.request.application.window_s)

    def _pay_loads(self, window: Window, plan: SelectionPlan) -> None:
        for application, loads in self._cold.record(window, plan).items():
            namespace = ModelName.parse(application).namespace
            for load in loads:
                self._driver.load(ModelName(namespace, load.variant), load.pod)


def _select(pending: PendingSelection, selection: Selection) -> None:
    pending.is_over = True
    pending.on_selected(selection)


def _selection(
    request: ApplicationRequest, assignment: Assignment, until_s: dict[str, float]
) -> Selection:
    """Deadlines for a pod's queue rise in planned order; the gateway keeps the request's own."""
    pod_until_s = None
    if request.application.refuses_late:
        due_s = request.arrival_s + request.deadline_s
        pod_until_s = max(due_s, until_s.get(assignment.worker, 0.0))
        until_s[assignment.worker] = pod_until_s
    variant = ModelName(request.application.name.namespace, assignment.variant)
    return Selection(assignment, request.policy, variant, assignment.worker, pod_until_s)


def _unplanned(pending: PendingSelection) -> Selection:
    """The most accurate variant, routed as a request to it would be."""
    request = pending.request
    spec, profile = max(
        pending.variants.usable, key=lambda each: (each[1].accuracy, each[0].name.name)
    )
    assignment = Assignment(request.id, profile.name, "", 0.0, profile.accuracy, 0.0)
    return Selection(assignment, request.policy, spec.name)


def no_variant(application: ApplicationSpec, variants: Variants) -> str:
    """Why none of the application's variants can be chosen, and what to do."""
    if not variants.problems:
        return (
            f"application {application.name} has no variants: annotate models of its namespace "
            f"with pilotlight.io/application: {application.name.name}"
        )
    return (
        f"application {application.name} has no variant that can be chosen; run `pilotlight "
        f"profile {application.name} --examples FILE`: {'; '.join(variants.problems)}"
    )
