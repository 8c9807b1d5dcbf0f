"""Each step on the next device in turn, whatever is loaded there.

Zhang et al. 2025, section 8.3, "RoundRobin".
"""

from collections.abc import Sequence

from workflows.plan.policies import devices_by_name, place_in_call_order
from workflows.plan.problem import Placement, Schedule, SchedulingProblem


def round_robin(problem: SchedulingProblem, turn: int = 0) -> Schedule:
    """Place the steps as called, beginning with the device at position `turn` by name.

    Devices that can not run a step are passed over. Raises SchedulingProblemError where none can.
    """
    positions = {device: position for position, device in enumerate(devices_by_name(problem))}

    def next_in_turn(options: Sequence[Placement]) -> Placement:
        nonlocal turn
        chosen = min(options, key=lambda at: (positions[at.device] - turn) % len(positions))
        turn = positions[chosen.device] + 1
        return chosen

    return place_in_call_order(problem, next_in_turn)
