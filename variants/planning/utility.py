"""What a response is expected to be worth; Wolfrath et al. 2025, sections 3 and 4.

Accuracy: a confusion matrix Z has a row per true class and a column per predicted class. The
frequencies of classes have a Dirichlet prior; the labels of the nearest training examples are
multinomial evidence. Utility and priority: deadlines and completions are seconds from the arrival
of the request, and functions take numbers or arrays. Section 6.1 prints max(1, ...) in two
penalties; min(1, ...) is meant. Pure.
"""

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
