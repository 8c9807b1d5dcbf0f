"""By time due, each request on the most accurate variant of its application, however late.

A baseline of Wolfrath et al. 2025, section 6.1.
"""

from variants.planning.planning_problem import PlanningProblem
from variants.planning.search import by_deadline, place_greedily


def max_accuracy_edf(problem: PlanningProblem) -> list[int]:
    return place_greedily(problem, by_deadline(problem), by_accuracy=True)
