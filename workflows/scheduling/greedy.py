"""Each step on the device where it ends earliest; nothing is foreseen.

Zhang et al. 2025, section 8.3, "Greedy".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows.scheduling.call_order import place_in_call_order

if TYPE_CHECKING:
    from workflows.scheduling.problem import Schedule, SchedulingProblem


def greedy(problem: SchedulingProblem) -> Schedule:
    """Place the steps as called; ties go to the first device by name.

    Raises SchedulingProblemError for a step that no device can run.
    """
    return place_in_call_order(
        problem, lambda options: min(options, key=lambda option: option.end_s)
    )
