"""Collects applications' requests in windows, and chooses the variant of each by a plan.

A window holds the requests of one tenant under one policy. It closes when its time is over, when
waiting longer would cost a request its deadline, when it is full, or, unless it is fixed, at once
while a pod that holds a variant is idle.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.applications.live_window import (
    Variants,
    has_idle_pod,
    live_window,
    variants_of,
)
from gateway.errors import NotReady
from gateway.selection.selection_policies import plan_window
from gateway.selection.window import WindowRequest
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.selection.window import Assignment
    from gateway.telemetry.explanations import Explanations
    from registry.domain.application import ApplicationSpec, SelectionPolicy
    from registry.domain.cluster import ClusterState

MAX_REQUESTS: Final = 64
"""Of a window; planning takes some 10 ms for 24."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The variant that serves a request, and what is expected of it."""

    variant: ModelName
    assignment: Assignment


@dataclass(slots=True)
class _Pending:
    request: WindowRequest
    application: ApplicationSpec
    variants: Variants
    chosen: asyncio.Future[Selection]


@dataclass(slots=True)
class _OpenWindow:
    pending: list[_Pending] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    closes_s: float = float("inf")
    """Loop time."""


class ApplicationSelector:
    """The open windows of one gateway."""

    def __init__(
        self, state: ClusterState, explanations: Explanations, now_s: Callable[[], float]
    ) -> None:
        """`now_s`: the registry's clock, as in the cluster state."""
        self._state = state
        self._explanations = explanations
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[str, SelectionPolicy], _OpenWindow] = {}

    async def select(
        self, application: ApplicationSpec, request_id: str, *, deadline_s: float,
        policy: SelectionPolicy,
    ) -> Selection:  # fmt: skip
        """Wait until the request's window is planned. Raises NotReady without a usable variant."""
        variants = variants_of(application, self._state)
        if not variants.usable:
            raise NotReady(_no_variant(application, variants), retry_after_s=1.0)
        request = WindowRequest(request_id, str(application.name), self._now_s(), deadline_s)
        pending = _Pending(request, application, variants, self._loop.create_future())
        key = (application.name.namespace, policy)
        window = self._open.setdefault(key, _OpenWindow())
        window.pending.append(pending)
        is_early = not application.is_window_fixed and has_idle_pod(variants, self._state)
        if is_early or len(window.pending) >= MAX_REQUESTS:
            self._close(key)
        else:
            self._close_by(key, window, self._loop.time() + self._patience_s(pending))
        return await pending.chosen

    def _patience_s(self, pending: _Pending) -> float:
        """How long the request may wait: less than its window if its deadline would be missed."""
        application = pending.application
        if application.is_window_fixed:
            return application.window_s
        holds = [
            pod.estimates[spec.key].stages.hold_s
            for spec, _ in pending.variants.usable
            for pod in self._state.warm(spec.key)
        ]
        spare_s = pending.request.deadline_s - min(holds, default=0.0)
        return max(0.0, min(application.window_s, spare_s))

    def _close_by(
        self, key: tuple[str, SelectionPolicy], window: _OpenWindow, time_s: float
    ) -> None:
        if time_s < window.closes_s:
            if window.timer is not None:
                window.timer.cancel()
            window.closes_s = time_s
            window.timer = self._loop.call_at(time_s, self._close, key)

    def _close(self, key: tuple[str, SelectionPolicy]) -> None:
        """Plan the window; requests go on in planned order."""
        window = self._open.pop(key)
        if window.timer is not None:
            window.timer.cancel()
        waiting = {each.request.id: each for each in window.pending if not each.chosen.done()}
        try:
            self._plan(key[1], waiting)
        except ValueError as error:
            for each in waiting.values():
                if not each.chosen.done():
                    each.chosen.set_exception(NotReady(str(error), retry_after_s=1.0))

    def _plan(self, policy: SelectionPolicy, waiting: dict[str, _Pending]) -> None:
        now_s = self._now_s()
        applications = {each.application.name: each for each in waiting.values()}
        window = live_window(
            [each.request for each in waiting.values()],
            [(each.application, each.variants) for each in applications.values()],
            self._state,
            now_s,
        )
        plan = plan_window(policy, window)
        for assignment in plan.assignments:
            pending = waiting[assignment.request]
            variant = ModelName(pending.application.name.namespace, assignment.variant)
            self._explanations.record_selection(
                assignment.request, _explained(policy, assignment, pending, len(waiting))
            )
            if not pending.chosen.done():
                pending.chosen.set_result(Selection(variant, assignment))


def _no_variant(application: ApplicationSpec, variants: Variants) -> str:
    if not variants.problems:
        return (
            f"application {application.name} has no variants: annotate models of its namespace "
            f"with pilotlight.io/application: {application.name.name}"
        )
    return (
        f"application {application.name} has no variant that can be chosen; run `pilotlight "
        f"profile {application.name} --examples FILE`: {'; '.join(variants.problems)}"
    )


def _explained(
    policy: SelectionPolicy, assignment: Assignment, pending: _Pending, requests: int
) -> dict[str, Any]:
    return {
        "application": str(pending.application.name),
        "policy": str(policy),
        "requests_in_window": requests,
        "variant": assignment.variant,
        "planned_pod": assignment.worker,
        "deadline_s": pending.request.deadline_s,
        "expected_completion_s": round(assignment.completion_s, 6),
        "expected_accuracy": round(assignment.accuracy, 6),
        "expected_utility": round(assignment.utility, 6),
        "candidates": [
            {"variant": profile.name, "profiled_accuracy": round(profile.accuracy, 6)}
            for _, profile in pending.variants.usable
        ],
        "left_out": list(pending.variants.problems),
    }
