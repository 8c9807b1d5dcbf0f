"""Input and output of selection policies: a window of requests, and a plan for it.

A plan lists every request of the window once, each with a variant and a worker, in the order in
which workers begin them. Times are seconds on one clock. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from registry.domain.application import Penalty
from variants.planning.utility import accuracy_by_class_mix, class_probabilities

SHORT_CIRCUIT: Final = "short-circuit"
"""In place of a variant: the look at the data answers the request. Its worker is empty."""


@dataclass(frozen=True, slots=True)
class VariantProfile:
    """What a variant's confusion matrix says about its accuracy."""

    name: str
    accuracy: float
    """Over the examples of the profile."""
    recalls: tuple[float, ...]
    """Per true class."""

    def accuracy_for(self, evidence: tuple[float, ...] | None) -> float:
        """By the likely classes of a request with this evidence; None: the profiled one."""
        if evidence is None:
            return self.accuracy
        return float(accuracy_by_class_mix(self.recalls, class_probabilities(evidence)))


@dataclass(frozen=True, slots=True)
class WindowApplication:
    name: str
    variants: tuple[VariantProfile, ...]
    penalty: Penalty = Penalty.SIGMOID
    short_circuit_accuracy: float | None = None
    """Profiled accuracy of the look at the data; None: it cannot answer requests."""


@dataclass(frozen=True, slots=True)
class WindowRequest:
    id: str
    application: str
    arrival_s: float
    deadline_s: float
    """From arrival."""
    evidence: tuple[float, ...] | None = None
    """Labels of its nearest training examples by class; None: not known in time."""
    may_short_circuit: bool = True
    """Whether the look could answer it, where its application allows that."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One device. It begins requests in planned order, one at a time."""

    name: str
    latency_s: Mapping[str, float]
    """By variant; a variant that is missing cannot run here."""
    swap_s: Mapping[str, float] = field(default_factory=dict)
    """What a change to the variant costs; nothing if missing."""
    around_s: Mapping[str, float] = field(default_factory=dict)
    """By variant: what a request takes beside its turn here, and delays no other request."""
    free_s: float = 0.0
    """When it has finished what was planned before."""
    setup_s: Mapping[str, float] = field(default_factory=dict)
    """By variant: what a batch takes in addition to its requests' latencies. Paid as swaps are,
    where the variant before is another one."""


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that are planned together at `now_s`."""

    requests: tuple[WindowRequest, ...]
    applications: tuple[WindowApplication, ...]
    workers: tuple[Worker, ...]
    now_s: float

    def application(self, name: str) -> WindowApplication:
        return next(each for each in self.applications if each.name == name)

    def soonest_s(self, variant: str, arrival_s: float, *, is_warm: bool) -> float | None:
        """Completion from arrival of a request that goes first; None: no worker can run it.

        `is_warm`: as if nothing had to be loaded for it.
        """
        ends_s = [
            max(worker.free_s, self.now_s)
            - arrival_s
            + worker.latency_s[variant]
            + worker.setup_s.get(variant, 0.0)
            + worker.around_s.get(variant, 0.0)
            + (0.0 if is_warm else worker.swap_s.get(variant, 0.0))
            for worker in self.workers
            if variant in worker.latency_s
        ]
        return min(ends_s, default=None)


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """What a policy may use of the look at the data, and the limits of its search."""

    is_data_aware: bool = False
    """Accuracies by each request's class probabilities instead of profiled ones."""
    short_circuit: bool = False
    splits_groups: bool = False
    max_exact_groups: int = 5
    """tau of algorithm 1: with more groups their order is greedy."""
    max_evaluations: int = 500
    """Plans of 24 requests that `refined` evaluates, in half the time that planning them may take;
    of fewer requests as many more."""


@dataclass(frozen=True, slots=True)
class Assignment:
    request: str
    variant: str
    worker: str
    completion_s: float
    """Expected, from the request's arrival."""
    accuracy: float
    """Expected."""
    utility: float
    """Expected."""


@dataclass(frozen=True, slots=True)
class SelectionPlan:
    assignments: tuple[Assignment, ...]

    @property
    def mean_utility(self) -> float:
        """What policies maximise (eq. 3); 0 without requests."""
        total = sum(each.utility for each in self.assignments)
        return total / len(self.assignments) if self.assignments else 0.0
