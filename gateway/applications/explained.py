"""A planned request for `pilotlight explain`: its window, candidates, posterior. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.selection.accuracy import accuracy_by_class_mix
from gateway.selection.class_posterior import class_probabilities

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
                "expected_accuracy": round(
                    profile.accuracy
                    if theta is None
                    else float(accuracy_by_class_mix(profile.recalls, theta)),
                    6,
                ),
                "soonest_s": _soonest(profile.name, request.arrival_s, window),
            }
            for _, profile in planned.variants.usable
        ],
        "left_out": list(planned.variants.problems),
    }


def _soonest(variant: str, arrival_s: float, window: Window) -> float | None:
    """Completion of the variant if it went first; None: no pod can run it."""
    ends = [
        max(worker.free_s, window.now_s)
        + worker.swap_s.get(variant, 0.0)
        + worker.latency_s[variant]
        + worker.around_s.get(variant, 0.0)
        - arrival_s
        for worker in window.workers
        if variant in worker.latency_s
    ]
    return round(min(ends), 6) if ends else None
