"""Interchangeable steps of one run as one batch, such as the agents of a debate's round.

The search places each step by itself, one after the other on a device. But a pod runs steps of one
model that come together as one batch. So the steps are also placed with their twins as one step
of several calls, and the better schedule counts. Times in seconds.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from workflows.scheduling.problem import Placement, Schedule, Step, kinds_of


@dataclass(frozen=True, slots=True)
class MergedSteps:
    """Steps of which some stand for several calls."""

    steps: tuple[Step, ...]
    position_of: tuple[int, ...]
    """By call, the step that stands for it."""

    def calls_of(self) -> list[int]:
        """By step, the first call that it stands for."""
        return [self.position_of.index(step) for step in range(len(self.steps))]


def ways_to_merge(
    steps: Sequence[Step], placed: Collection[int], max_batch: Callable[[str], int]
) -> list[MergedSteps]:
    """Each call by itself; twins in halves; all twins together. Placed calls stay alone."""
    twins: dict[int, list[int]] = defaultdict(list)
    for call, kind in enumerate(kinds_of(steps)):
        if call not in placed:
            twins[kind].append(call)
    most = max((len(group) for group in twins.values()), default=1)
    sizes = sorted({1, (most + 1) // 2, most})
    return [_merged(steps, list(twins.values()), size, max_batch) for size in sizes]


def _merged(
    steps: Sequence[Step],
    twins: Sequence[Sequence[int]],
    size: int,
    max_batch: Callable[[str], int],
) -> MergedSteps:
    leader = list(range(len(steps)))
    for group in twins:
        together = min(size, max_batch(steps[group[0]].model))
        for at, call in enumerate(group):
            leader[call] = group[at - at % together]
    leaders = sorted(set(leader))
    position = {call: at for at, call in enumerate(leaders)}
    merged = tuple(
        Step(
            steps[call].model,
            tuple(dict.fromkeys(position[leader[each]] for each in steps[call].inputs)),
            leader.count(call),
        )
        for call in leaders
    )
    return MergedSteps(merged, tuple(position[each] for each in leader))


def place_sharing_batches(
    steps: Sequence[Step],
    placed: Mapping[int, Placement],
    max_batch: Callable[[str], int],
    place: Callable[[MergedSteps, Mapping[int, Placement]], Schedule],
) -> Schedule:
    """The schedule of all calls whose last one ends earliest, with larger batches among equals.

    It is exact if those of all ways are.
    """
    best: Schedule | None = None
    exact = True
    for way in reversed(ways_to_merge(steps, placed, max_batch)):
        found = place(way, {way.position_of[call]: at for call, at in placed.items()})
        exact = exact and found.exact
        if best is None or found.finish_s < best.finish_s * (1 - 1e-9):
            placements = tuple(found.placements[position] for position in way.position_of)
            first = way.calls_of()
            best = replace(
                found, placements=placements, order=tuple(first[each] for each in found.order)
            )
    if best is None:
        raise ValueError("there is always a way in which each call is alone")
    return replace(best, exact=exact)
