"""The penalty of a missed deadline, and the utility of a response; Wolfrath et al. 2025, eq. 2.

Deadlines and completions are seconds from the arrival of the request. Every function takes numbers
or arrays. Section 6.1 prints max(1, ...) in two penalties; min(1, ...) is meant. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from registry.domain.application import Penalty

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = "NDArray[np.float64] | float"


def penalty(kind: Penalty, deadline_s: Numbers, completion_s: Numbers) -> NDArray[np.float64]:
    """The share of the accuracy that lateness costs, from 0 (in time) to 1.

    With x = (completion - deadline) / deadline: step 1, linear min(1, x), sigmoid
    1 / (1 + (x / (1 - x))^-3) and 1 from x = 1 on, none 0.
    """
    late = np.maximum(np.asarray(completion_s, np.float64) - deadline_s, 0.0) / deadline_s
    match kind:
        case Penalty.NONE:
            return np.zeros_like(late)
        case Penalty.STEP:
            return (late > 0.0).astype(np.float64)
        case Penalty.LINEAR:
            return np.minimum(late, 1.0)
        case Penalty.SIGMOID:
            x = np.minimum(late, 1.0)
            cube = x * x * x
            rest = 1.0 - x
            # The same as 1 / (1 + (x / (1 - x))^-3), also at 0 and at 1.
            result: NDArray[np.float64] = cube / (cube + rest * rest * rest)
            return result


def utility(
    accuracy: Numbers, kind: Penalty, deadline_s: Numbers, completion_s: Numbers
) -> NDArray[np.float64]:
    """Expected accuracy, less what lateness costs (eq. 2)."""
    return np.asarray(accuracy * (1.0 - penalty(kind, deadline_s, completion_s)))
