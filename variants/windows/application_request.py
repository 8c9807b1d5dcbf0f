"""A request to an application while it is planned, what the plan gave it, and its explanation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from registry.domain.application import ApplicationSpec
from registry.domain.model import ModelName
from variants.looks.client import Look
from variants.planning.utility import class_probabilities, penalty_of_one
from variants.planning.window import Assignment, Window, WindowRequest
from variants.windows.live_window import Variants


@dataclass(slots=True, eq=False)
class ApplicationRequest:
    """Times in seconds; the arrival on the registry's clock, the deadline from it."""

    id: str
    application: ApplicationSpec
    arrival_s: float
    deadline_s: float
    policy: str
    look: Look = field(default_factory=Look)
    on_selected: "Callable[[Selection], object]" = lambda _: None
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
