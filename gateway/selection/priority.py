"""The priority of a request: soon due, or much to gain from a choice; Wolfrath et al. 2025, eq. 12.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def priority(accuracies: ArrayLike, left_s: float) -> float:
    """(1 + population variance of the variants' accuracies) * e^(-left).

    `left_s` is the time to the deadline when the window is planned; negative once that has passed.
    """
    return float((1.0 + np.var(np.asarray(accuracies, np.float64))) * np.exp(-left_s))


def group_priority(priorities: ArrayLike) -> float:
    """The mean of the priorities of a group's requests (eq. 14)."""
    return float(np.mean(np.asarray(priorities, np.float64)))
