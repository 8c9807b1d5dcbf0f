"""The penalty of a missed deadline, and the utility of a response; Wolfrath et al. 2025, eq. 2.

Deadlines and completions are seconds from the arrival of the request. Every function takes numbers
or arrays. Section 6.1 prints max(1, ...) in two penalties; min(1, ...) is meant. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from registry.domain.application import Penalty

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = "NDArray[np.float64] | float"

_N = TypeVar("_N", float, "NDArray[np.float64]")


def penalty(kind: Penalty, deadline_s: Numbers, completion_s: Numbers) -> NDArray[np.float64]:
    """The share of the accuracy that lateness costs, from 0 (in time) to 1.

    With x = (completion - deadline) / deadline: step 1, linear min(1, x), sigmoid
    1 / (1 + (x / (1 - x))^-3) and 1 from x = 1 on, none 0.
    """
    late = np.maximum(np.asarray(completion_s, np.float64) - deadline_s, 0.0) / deadline_s
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


def utility(
    accuracy: Numbers, kind: Penalty, deadline_s: Numbers, completion_s: Numbers
) -> NDArray[np.float64]:
    """Expected accuracy, less what lateness costs (eq. 2)."""
    return np.asarray(accuracy * (1.0 - penalty(kind, deadline_s, completion_s)))
