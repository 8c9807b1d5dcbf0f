"""The mixed-integer program of Elvinger 2024, section 5.4.3, over patterns of one accelerator.

Maximise sum w_m; w_m <= rate_m; w_m <= sum_b T_mb n_mb; one batch size per model (y_mb); a model
at most once per accelerator; compute and memory at most 100 %. n_mb counts replicas, z_p
accelerators with pattern p, a maximal set of (model, batch) that fits: n_mb <= sum z_p over the
patterns with (m, b). Mixed kinds have patterns and coefficients per kind. Ties: fewest replicas,
then smallest batches. Reads of the params: `max_replicas`, `max_nodes`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.patterns import (
    Item,
    Pattern,
    TooManyPatterns,
    best_pattern,
    partition,
    patterns_of,
    value_bound,
)
from autoscaler.placement.planners.plan import (
    Replica,
    make_placement,
    profiled_capacity,
    throughput_bound,
    unservable_reasons,
)
from autoscaler.placement.planners.problem import Metric, PlanParams, validate
from autoscaler.placement.planners.solver import Program
from autoscaler.placement.planners.usher import plan_usher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autoscaler.placement.planners.plan import Placement
    from autoscaler.placement.planners.problem import (
        AcceleratorView,
        Profiles,
        Workload,
    )

_PROVEN: Final = 1e-6
"""A larger gap: the search was cut short, and Usher's plan may be better."""
_MAX_PATTERNS: Final = 3_000
_ROUNDS: Final = 40
"""Of column generation."""
_BOUND_EVERY: Final = 8
_LARGE_GAP: Final = 0.01
"""Of the last program with generated patterns."""
_SMALL: Final = 20
"""Models up to which Usher plans in a fraction of a second."""
_MAX_BATCH_SUM: Final = 1 << 16
"""Above the batches of all replicas together: a replica less is better than any smaller batch."""


def ao_milp(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    current: Sequence[Replica],
    params: PlanParams,
) -> Placement:
    """Compute need: the highest achieved occupancy."""
    return plan_milp(Metric.ACHIEVED_OCCUPANCY, workloads, accelerators, profiles, params)


def wao_milp(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    current: Sequence[Replica],
    params: PlanParams,
) -> Placement:
    """Compute need: the mean achieved occupancy."""
    return plan_milp(Metric.MEAN_OCCUPANCY, workloads, accelerators, profiles, params)


def wsm_milp(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    current: Sequence[Replica],
    params: PlanParams,
) -> Placement:
    """Compute need: the mean utilisation of multiprocessors."""
    return plan_milp(Metric.SM_UTILIZATION, workloads, accelerators, profiles, params)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The accelerators of one kind, and what they can hold."""

    accelerators: tuple[str, ...]
    items: tuple[Item, ...]
    patterns: tuple[Pattern, ...]

    def items_of(self, model: str) -> list[Item]:
        return [each for each in self.items if each.model == model]


def plan_milp(
    metric: Metric,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    params: PlanParams,
) -> Placement:
    """The program with the given metric as the compute need."""
    validate(workloads, accelerators, profiles)
    ordered = sorted(workloads, key=lambda each: each.model)
    kinds = []
    for kind in sorted({each.kind for each in accelerators}):
        names = tuple(sorted(each.name for each in accelerators if each.kind == kind))
        items = tuple(
            Item(
                each.model, point.batch_size, point.throughput_rps,
                point.compute_pct(metric), point.memory_pct,
            )
            for each in ordered
            for point in profiles.feasible(each, kind)
        )  # fmt: skip
        kinds.append(_Kind(names, items, ()))
    solved = _solve(ordered, kinds, params)
    placement = make_placement(
        f"{metric}-milp",
        solved.replicas,
        workloads,
        capacity=profiled_capacity(profiles, accelerators),
        bound_rps=min(solved.bound_rps, throughput_bound(workloads, accelerators, profiles)),
        reasons=unservable_reasons(workloads, accelerators, profiles),
    )
    is_small = len(kinds) == 1 and len(workloads) <= _SMALL
    if is_small and placement.gap_ratio > _PROVEN:
        heuristic = plan_usher(
            metric, workloads, accelerators, profiles, PlanParams(has_shares=False)
        )
        if heuristic.total_rps > placement.total_rps:
            return replace(heuristic, planner=placement.planner, bound_rps=placement.bound_rps)
    return placement


def _solve(workloads: Sequence[Workload], kinds: Sequence[_Kind], params: PlanParams) -> _Solved:
    """With all patterns, or, if they are too many, with those that a relaxation asks for."""
    try:
        whole = [replace(each, patterns=patterns_of(each.items, _MAX_PATTERNS)) for each in kinds]
    except TooManyPatterns:
        return _solve_by_columns(workloads, kinds, params)
    return _Model(workloads, whole, params).solve()


def _solve_by_columns(
    workloads: Sequence[Workload], kinds: Sequence[_Kind], params: PlanParams
) -> _Solved:
    """Column generation: patterns of high price are added to the relaxed program.

    No plan is better than a relaxed value plus, per accelerator, the price that any pattern could
    still gain (Lagrange's bound).
    """
    kinds = [
        replace(each, patterns=tuple(partition(each.items, _first_values(each, workloads))))
        for each in kinds
    ]
    bound = inf
    for done in range(_ROUNDS):
        value, prices = _Model(workloads, kinds, params).relaxed()
        possible, grown, has_new = value, [], False
        for kind, (values, per_accelerator) in zip(kinds, prices, strict=True):
            if done % _BOUND_EVERY == _BOUND_EVERY - 1:
                gain = value_bound(kind.items, values) - per_accelerator
                possible += max(0.0, gain) * len(kind.accelerators)
            else:
                possible = inf
            offered = {*partition(kind.items, values), best_pattern(kind.items, values)}
            new = sorted(offered.difference(kind.patterns, [()]))
            has_new = has_new or bool(new)
            grown.append(replace(kind, patterns=(*kind.patterns, *new)))
        bound = min(bound, possible)
        if not has_new:
            break
        kinds = grown
    few = replace(params, max_gap_ratio=max(params.max_gap_ratio, _LARGE_GAP), max_nodes=1)
    found = _Model(workloads, kinds, few).solve()
    return _Solved(found.replicas, bound)


def _first_values(kind: _Kind, workloads: Sequence[Workload]) -> dict[Item, float]:
    """What one replica serves."""
    rates = {each.model: each.rate_rps for each in workloads}
    return {item: min(rates[item.model], item.throughput_rps) for item in kind.items}


@dataclass(frozen=True, slots=True)
class _Solved:
    replicas: tuple[Replica, ...]
    bound_rps: float


class _Model:
    """The program of one problem; variables are numbers of its columns."""

    def __init__(
        self, workloads: Sequence[Workload], kinds: Sequence[_Kind], params: PlanParams
    ) -> None:
        self._kinds = kinds
        self._params = params
        self._program = Program()
        self._counts: list[dict[Item, int]] = [{} for _ in kinds]
        self._uses: list[list[int]] = []
        self._goodput: list[int] = []
        self._room: list[dict[Item, int]] = []
        """Constraints that a replica needs a place in a pattern."""
        self._sizes: list[int] = []
        """Constraints of the numbers of accelerators."""
        accelerators = sum(len(kind.accelerators) for kind in kinds)
        for each in workloads:
            self._add_model(each, params.max_replicas.get(each.model, accelerators))
        for kind, counts in zip(kinds, self._counts, strict=True):
            self._uses.append(self._add_patterns(kind, counts))

    def _add_model(self, workload: Workload, most: int) -> None:
        """Variables of one model: y_mb, the goodput in batch b, and the counts of replicas."""
        chosen, counts = [], []
        sizes = {item.batch_size for kind in self._kinds for item in kind.items_of(workload.model)}
        for size in sorted(sizes):
            y = self._program.variable(upper=1, is_integer=True)
            goodput = self._program.variable(upper=workload.rate_rps, gain=1.0)
            served = [(goodput, 1.0)]
            for kind, into in zip(self._kinds, self._counts, strict=True):
                for item in kind.items_of(workload.model):
                    if item.batch_size == size:
                        count = self._add_count(item, y, len(kind.accelerators), workload)
                        into[item] = count
                        counts.append(count)
                        served.append((count, -item.throughput_rps))
            self._program.at_most(0, served)
            self._program.at_most(0, [(goodput, 1.0), (y, -workload.rate_rps)])
            if len(self._kinds) == 1:
                self._tighten(workload, item, goodput, y, count)
            chosen.append(y)
            self._goodput.append(goodput)
        self._program.at_most(1, [(each, 1.0) for each in chosen])
        self._program.at_most(most, [(each, 1.0) for each in counts])

    def _add_count(self, item: Item, y: int, accelerators: int, workload: Workload) -> int:
        """Replicas beyond those that carry the rate are never of use."""
        upper = min(accelerators, ceil(workload.rate_rps / item.throughput_rps))
        count = self._program.variable(upper=upper, is_integer=True)
        self._program.at_most(0, [(count, 1.0), (y, -float(upper))])
        return count

    def _tighten(self, workload: Workload, item: Item, goodput: int, y: int, count: int) -> None:
        """The line through the last two points of min(rate, T n): cuts no whole number off."""
        full = floor(workload.rate_rps / item.throughput_rps)
        rest = workload.rate_rps - full * item.throughput_rps
        start = full * (item.throughput_rps - rest)
        self._program.at_most(0, [(goodput, 1.0), (count, -rest), (y, -start)])

    def _add_patterns(self, kind: _Kind, counts: Mapping[Item, int]) -> list[int]:
        size = len(kind.accelerators)
        uses = [self._program.variable(upper=size, is_integer=True) for _ in kind.patterns]
        self._sizes.append(self._program.at_most(size, [(each, 1.0) for each in uses]))
        holders: dict[Item, list[int]] = {item: [] for item in kind.items}
        for pattern, use in zip(kind.patterns, uses, strict=True):
            for item in pattern:
                holders[item].append(use)
        self._room.append(
            {
                item: self._program.at_most(
                    0, [(count, 1.0), *((use, -1.0) for use in holders[item])]
                )
                for item, count in counts.items()
            }
        )
        return uses

    def relaxed(self) -> tuple[float, list[tuple[dict[Item, float], float]]]:
        """The relaxed value; by kind the price of a place for each item, and of an accelerator."""
        value, prices = self._program.relaxed()
        return value, [
            ({item: prices[row] for item, row in room.items()}, prices[size])
            for room, size in zip(self._room, self._sizes, strict=True)
        ]

    def solve(self) -> _Solved:
        """The most goodput, then the cheapest plan with it."""
        first = self._program.maximise(
            max_nodes=self._params.max_nodes, gap_ratio=self._params.max_gap_ratio
        )
        if self._params.max_gap_ratio > 0:
            return _Solved(self._replicas(first.values), first.bound)
        replicas = {
            column: -float(_MAX_BATCH_SUM + item.batch_size)
            for counts in self._counts
            for item, column in counts.items()
        }
        best = self._program.maximise(
            replicas,
            keep=(self._goodput, first.value),
            start=first.values,
            max_nodes=self._params.max_nodes,
        )
        return _Solved(self._replicas(best.values), first.bound)

    def _replicas(self, values: Sequence[float]) -> tuple[Replica, ...]:
        replicas = []
        for kind, counts, uses in zip(self._kinds, self._counts, self._uses, strict=True):
            left = Counter({item: round(values[column]) for item, column in counts.items()})
            filled = [
                pattern
                for pattern, use in zip(kind.patterns, uses, strict=True)
                for _ in range(round(values[use]))
            ]
            for accelerator, pattern in zip(kind.accelerators, filled, strict=False):
                for item in pattern:
                    if left[item] > 0:
                        left[item] -= 1
                        replicas.append(Replica(item.model, accelerator, item.batch_size))
        return tuple(replicas)
