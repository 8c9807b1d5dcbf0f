"""A planned request for `pilotlight explain`: its window, candidates, posterior. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.selection.accuracy import accuracy_by_class_mix
from gateway.selection.class_posterior import class_probabilities
from gateway.selection.utility import penalty_of_one

if TYPE_CHECKING:
    from gateway.applications.application_request import ApplicationRequest
    from gateway.applications.live_window import PlannedApplication
    from gateway.selection.window import Assignment, Window


def explain_selection(
    request: ApplicationRequest, planned: PlannedApplication, assignment: Assignment,
    window: Window,
) -> dict[str, Any]:  # fmt: skip
    """As JSON."""
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
