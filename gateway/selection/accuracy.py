"""Accuracy of a variant from its confusion matrix; Wolfrath et al. 2025, section 4.1.

A confusion matrix Z has a row per true class and a column per predicted class. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


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
