"""The priority of a request: soon due, or much to gain from a choice; Wolfrath et al. 2025, eq. 12.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def priority(accuracies: ArrayLike, left_s: ArrayLike) -> NDArray[np.float64]:
    """(1 + population variance of the variants' accuracies) * e^(-left).

    `accuracies` are [..., variants]. `left_s` [...] is the time to the deadline when the window is
    planned; negative once that has passed.
    """
    values = np.asarray(accuracies, np.float64)
    # np.var takes three times as long.
    mean = np.add.reduce(values, axis=-1, keepdims=True) / values.shape[-1]
    variance = np.add.reduce((values - mean) ** 2, axis=-1) / values.shape[-1]
    return np.asarray((1.0 + variance) * np.exp(-np.asarray(left_s, np.float64)))


def group_priority(priorities: ArrayLike) -> float:
    """The mean of the priorities of a group's requests (eq. 14)."""
    values = np.asarray(priorities, np.float64)
    return float(np.add.reduce(values) / len(values))  # np.mean takes three times as long
