"""The placement of a whole, partly predicted run whose last step ends earliest.

Zhang et al. 2025, algorithm 1, by layers of steps placed. Two things are mended: placed steps are
recorded apart from the outputs still needed, and only partial schedules of the same placed steps
dominate each other; the end of a step without dependents stays known. A device first finishes
this run's earlier steps there, so the order of steps counts, and a dominating partial schedule also
has no device free later and lacks no model.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from workflows.plan.problem import (
    Placement,
    Schedule,
    SchedulingProblem,
    Step,
    dependents,
    devices_by_name,
    end_of_step,
    greedy,
    kinds_of,
)

MAX_STATES: Final = 16
"""Partial schedules kept per layer; beyond it those that can end earliest, and the result may not
be exact. On random clusters 16 end within 0.01 % of the optimum on average, in a tenth of its
time."""
FEW_STATES: Final = 4
"""For planning while a run waits: in `benchmarks.workflows` plans end 0.02 % later on average at 32
devices and 0.09 % at 1,000, in half to a third of the time."""
_ROUNDING: Final = 1e-9
"""Relative: a bound that is higher by less may be equal."""


@dataclass(slots=True, eq=False)
class _Partial:
    """A partial schedule: which steps are placed, and what that leaves to the others.

    Never changed; not frozen, which would double the cost of a search.
    """

    placed: int
    """Bit mask of steps."""
    outputs: tuple[tuple[int, int], ...]
    """(step, device) of outputs that unplaced steps take, by step."""
    ends_s: tuple[float, ...]
    """When each of `outputs` is there."""
    results_s: float
    """Latest end of the steps whose outputs nobody takes."""
    busy_until_s: Mapping[int, float]
    """By device that this run uses."""
    loaded: frozenset[tuple[int, str]]
    """(device, model) that this run loads and may use again."""
    bound_s: float
    """No completion ends earlier."""
    parent: "_Partial | None"
    step: int
    at: Placement

    def dominates(self, other: "_Partial") -> bool:
        """Whether no completion of the other, of the same steps and devices, ends earlier."""
        if self.results_s > other.results_s:
            return False
        for mine, theirs in zip(self.ends_s, other.ends_s, strict=True):
            if mine > theirs:
                return False
        busy = other.busy_until_s
        for device, until_s in self.busy_until_s.items():
            if until_s > busy.get(device, 0.0):
                return False
        return self.loaded >= other.loaded


class _Search:
    """The constants of one problem that every partial schedule needs."""

    def __init__(self, problem: SchedulingProblem, latest_s: float) -> None:
        self.problem = problem
        self.latest_s = latest_s * (1.0 + _ROUNDING)
        steps = problem.steps
        self.after = dependents(steps)
        by_name = devices_by_name(problem)
        self.where = [
            [device for device in by_name if row[device] < inf] for row in problem.compute_s
        ]
        self.inputs = [tuple(sorted(set(step.inputs))) for step in steps]
        self.needs = [
            _mask(inputs) | _mask(twins)
            for inputs, twins in zip(self.inputs, _earlier_twins(problem.alike, steps), strict=True)
        ]
        self.followers = [_mask(after) for after in self.after]
        models = [step.model for step in steps]
        self.reused = [models.count(model) > 1 for model in models]
        shortest = [min(row, default=inf) for row in problem.compute_s]
        self.rest_s = _longest_rests(self.after, shortest)
        self.todo = _mask(step for step in range(len(steps)) if step not in problem.placed)

    def start(self) -> _Partial:
        placed = self.problem.placed
        mask = _mask(placed)
        outputs = tuple(
            (step, placed[step].device) for step in sorted(placed) if self.followers[step] & ~mask
        )
        results = [placed[step].end_s for step in placed if not self.after[step]]
        return _Partial(
            placed=mask,
            outputs=outputs,
            ends_s=tuple(placed[step].end_s for step, _ in outputs),
            results_s=max(results, default=0.0),
            busy_until_s={},
            loaded=frozenset(),
            bound_s=0.0,
            parent=None,
            step=-1,
            at=Placement(-1, 0.0, 0.0),
        )

    def ready(self, placed: int) -> list[int]:
        """Steps whose inputs and earlier twins are placed."""
        return [
            step
            for step, needs in enumerate(self.needs)
            if not placed >> step & 1 and needs & placed == needs
        ]

    def children(self, partial: _Partial) -> Iterator[_Partial]:
        at = {
            step: (device, end_s)
            for (step, device), end_s in zip(partial.outputs, partial.ends_s, strict=True)
        }
        for step in self.ready(partial.placed):
            for device in self.where[step]:
                child = self._child(partial, at, step, device)
                if child is not None:
                    yield child

    def _child(
        self, partial: _Partial, at: Mapping[int, tuple[int, float]], step: int, device: int
    ) -> _Partial | None:
        problem, model = self.problem, self.problem.steps[step].model
        ready_s = 0.0
        for source in self.inputs[step]:
            origin, moved_s = at[source]
            if origin != device:
                moved_s += problem.transfer_s(source, step, origin, device)
            ready_s = max(ready_s, moved_s)
        start_s, end_s = end_of_step(
            problem,
            step,
            device,
            ready_s=ready_s,
            busy_until_s=partial.busy_until_s.get(device, 0.0),
            is_loaded=(device, model) in partial.loaded,
        )
        bound_s = max(partial.bound_s, end_s + self.rest_s[step])
        if bound_s > self.latest_s or end_s == inf:
            return None
        placed = partial.placed | 1 << step
        needed = {source: value for source, value in at.items() if self.followers[source] & ~placed}
        results_s = partial.results_s
        if self.after[step]:
            needed[step] = (device, end_s)
        else:
            results_s = max(results_s, end_s)
        kept = sorted(needed)
        return _Partial(
            placed=placed,
            outputs=tuple([(source, needed[source][0]) for source in kept]),
            ends_s=tuple([needed[source][1] for source in kept]),
            results_s=results_s,
            busy_until_s={**partial.busy_until_s, device: end_s},
            loaded=partial.loaded | {(device, model)} if self.reused[step] else partial.loaded,
            bound_s=bound_s,
            parent=partial,
            step=step,
            at=Placement(device, start_s, end_s),
        )


def speculative(problem: SchedulingProblem, max_states: int = MAX_STATES) -> Schedule:
    """The schedule with the earliest end of the last step, the first by device names among equals.

    Raises SchedulingProblemError for steps that wait for each other and where no device can run
    a step.
    """
    known = greedy(problem)
    search = _Search(problem, known.finish_s)
    layer, exact = [search.start()], True
    for _ in range(search.todo.bit_count()):
        grown = _undominated(child for partial in layer for child in search.children(partial))
        if len(grown) > max_states:
            grown, exact = sorted(grown, key=lambda partial: partial.bound_s)[:max_states], False
        layer = grown
    if not layer:
        return replace(known, exact=exact)
    schedules = [_schedule(problem, partial, exact=exact) for partial in layer]
    return min(schedules, key=lambda schedule: _rank(problem, schedule))


def _undominated(partials: Iterable[_Partial]) -> list[_Partial]:
    """The partial schedules of which no other makes as much possible; the first of equals."""
    groups: dict[tuple[int, tuple[tuple[int, int], ...]], list[_Partial]] = {}
    for partial in partials:
        rivals = groups.setdefault((partial.placed, partial.outputs), [])
        if not any(rival.dominates(partial) for rival in rivals):
            rivals[:] = [rival for rival in rivals if not partial.dominates(rival)]
            rivals.append(partial)
    return [partial for rivals in groups.values() for partial in rivals]


def _schedule(problem: SchedulingProblem, last: _Partial, *, exact: bool) -> Schedule:
    placements, order = dict(problem.placed), []
    partial: _Partial | None = last
    while partial is not None and partial.parent is not None:
        placements[partial.step] = partial.at
        order.append(partial.step)
        partial = partial.parent
    by_step = tuple(placements[step] for step in range(len(problem.steps)))
    return Schedule(by_step, tuple(reversed(order)), exact)


def _rank(problem: SchedulingProblem, schedule: Schedule) -> tuple[float, list[str]]:
    return schedule.finish_s, [problem.devices[at.device] for at in schedule.placements]


def _earlier_twins(alike: Sequence[int], steps: Sequence[Step]) -> list[list[int]]:
    """By step, the interchangeable step called before it."""
    twins: list[list[int]] = [[] for _ in steps]
    latest: dict[int, int] = {}
    for step, kind in enumerate(alike):
        if kind in latest:
            twins[step].append(latest[kind])
        latest[kind] = step
    return twins


def _longest_rests(after: Sequence[Sequence[int]], shortest_s: Sequence[float]) -> list[float]:
    """By step, the least time between its end and the run's: computation on its longest path."""
    rests = [0.0] * len(after)
    for step in reversed(range(len(after))):
        rests[step] = max((shortest_s[each] + rests[each] for each in after[step]), default=0.0)
    return rests


def _mask(steps: Iterable[int]) -> int:
    found = 0
    for step in steps:
        found |= 1 << step
    return found


KEEPS_S: Final = 0.05
"""Queues hardly change in that time, and calls made together are planned once."""


def is_outdated(is_foreseen: bool, age_s: float) -> bool:
    """Whether calls that were, or were not, foreseen by a plan of this age need another."""
    return not is_foreseen or age_s > KEEPS_S


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

    The search places steps one by one, but a pod runs steps of one model that come together as one
    batch. So interchangeable steps, such as the agents of a debate's round, are also placed as one
    step of several calls, and the better schedule counts. It is exact if those of all ways are.
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
