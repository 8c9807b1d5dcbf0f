"""A window of requests, a plan for it, and what responses are worth; Wolfrath et al. 2025.

Accuracy: a confusion matrix Z has a row per true class and a column per predicted class. The
frequencies of classes have a Dirichlet prior; the labels of the nearest training examples are
multinomial evidence. Utility and priority: deadlines and completions are seconds from the arrival
of the request, and functions take numbers or arrays. Section 6.1 prints max(1, ...) in two
penalties; min(1, ...) is meant. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from registry.domain.application import Penalty

_N = TypeVar("_N", float, "NDArray[np.float64]")

JEFFREYS: Final = 0.5
"""The uninformative prior's weight of each class; section 6.3.3."""


def profiled_accuracy(confusion: ArrayLike) -> float:
    """tr(Z) / sum(Z): the accuracy over the examples of the profile (eq. 7)."""
    matrix = np.asarray(confusion, np.float64)
    return float(np.trace(matrix) / matrix.sum())


def recalls(confusion: ArrayLike) -> NDArray[np.float64]:
    """z_ii / sum_j z_ij of each class; raises ValueError for a class without examples."""
    matrix = np.asarray(confusion, np.float64)
    totals = matrix.sum(axis=1)
    if not (totals > 0).all():
        empty = ", ".join(str(each) for each in np.flatnonzero(~(totals > 0)))
        raise ValueError(f"every class needs an example; rows without one: {empty}")
    found: NDArray[np.float64] = np.diagonal(matrix) / totals
    return found


def accuracy_by_class_mix(recall: ArrayLike, theta: ArrayLike) -> NDArray[np.float64]:
    """Sum of theta_i times the recall of class i (eq. 9).

    `recall` [..., classes] of variants and `theta` [classes] or [requests, classes] give [...] or
    [requests, ...].
    """
    return np.asarray(np.asarray(theta, np.float64) @ np.asarray(recall, np.float64).T)


def class_probabilities(evidence: ArrayLike, alpha: ArrayLike = JEFFREYS) -> NDArray[np.float64]:
    """The mean of the posterior Dirichlet(alpha + y) (eq. 11), for evidence [..., classes]."""
    weights = np.asarray(alpha, np.float64) + np.asarray(evidence, np.float64)
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


def penalty(kind: Penalty, deadline_s: ArrayLike, completion_s: ArrayLike) -> NDArray[np.float64]:
    """The share of the accuracy that lateness costs, from 0 (in time) to 1.

    With x = (completion - deadline) / deadline: step 1, linear min(1, x), sigmoid
    1 / (1 + (x / (1 - x))^-3) and 1 from x = 1 on, none 0.
    """
    deadline, completion = np.asarray(deadline_s, np.float64), np.asarray(completion_s, np.float64)
    late = np.maximum(completion - deadline, 0.0) / deadline
    return np.asarray(_penalty_of(kind, np.minimum(late, 1.0)), np.float64)


def penalty_of_one(kind: Penalty, deadline_s: float, completion_s: float) -> float:
    """As `penalty` for one request, without arrays: a tenth of the time."""
    return float(_penalty_of(kind, min(max(completion_s - deadline_s, 0.0) / deadline_s, 1.0)))


def _penalty_of(kind: Penalty, x: _N) -> _N:
    """For a lateness of `x` deadlines, at most 1."""
    match kind:
        case Penalty.NONE:
            return x * 0.0
        case Penalty.STEP:
            return x * 0.0 + (x > 0.0)
        case Penalty.LINEAR:
            return x
        case Penalty.SIGMOID:
            cube = x * x * x
            rest = 1.0 - x
            # The same as 1 / (1 + (x / (1 - x))^-3), also at 0 and at 1.
            found: _N = cube / (cube + rest * rest * rest)
            return found


def priority(accuracies: ArrayLike, left_s: ArrayLike) -> NDArray[np.float64]:
    """A request's: (1 + population variance of the variants' accuracies) * e^(-left) (eq. 12).

    `accuracies` are [..., variants]. `left_s` [...] is the time to the deadline when the window is
    planned; negative once that has passed.
    """
    values = np.asarray(accuracies, np.float64)
    # np.var takes three times as long.
    mean = np.add.reduce(values, axis=-1, keepdims=True) / values.shape[-1]
    variance = np.add.reduce((values - mean) ** 2, axis=-1) / values.shape[-1]
    return np.asarray((1.0 + variance) * np.exp(-np.asarray(left_s, np.float64)))


# Input and output of selection policies. A plan lists every request of the window once, each with
# a variant and a worker, in the order in which workers begin them. Times are seconds on one
# clock.


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
