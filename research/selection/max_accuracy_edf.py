"""By time due, each request on the most accurate variant of its application, however late.

A baseline of Wolfrath et al. 2025, section 6.1.
"""

from gateway.selection.greedy_placement import by_deadline, place_most_accurate
from gateway.selection.planning_problem import PlanningProblem, Step


def max_accuracy_edf(problem: PlanningProblem) -> list[Step]:
    return place_most_accurate(problem, by_deadline(problem))
