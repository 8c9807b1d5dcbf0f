"""The mixed-integer program of Elvinger 2024, section 5.4.3, over patterns of one accelerator.

Maximise sum w_m; w_m <= rate_m; w_m <= sum_b T_mb n_mb; one batch size per model (y_mb); a model
at most once per accelerator; compute and memory at most 100 %. n_mb counts replicas, z_p
accelerators with pattern p, a maximal set of (model, batch) that fits: n_mb <= sum z_p over the
patterns with (m, b). Mixed kinds have patterns and coefficients per kind. Ties: fewest replicas,
then smallest batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Final, TypeAlias

from autoscaler.placement.plan import (
    Placement,
    Plan,
    make_placement,
    profiled_capacity,
    throughput_bound,
    unservable_reasons,
)
from autoscaler.placement.problem import (
    AcceleratorView,
    Metric,
    PlanParams,
    Profiles,
    Workload,
    validate,
)
from autoscaler.placement.usher import plan_usher
from registry.domain.records import PlacedReplica
from research.placement.fleet import gap_ratio, of_one_kind
from research.placement.goodput_program import GoodputProgram, KindItems, SolvedProgram
from research.placement.patterns import (
    Item,
    TooManyPatterns,
    best_pattern,
    partition,
    patterns_of,
    value_bound,
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


def plan_milp(
    metric: Metric,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    _params: PlanParams,
) -> Placement:
    """The program with the given metric as the compute need."""
    validate(workloads, accelerators, profiles)
    ordered = sorted(workloads, key=lambda each: each.model)
    kinds = []
    for kind in sorted({each.kind for each in accelerators}):
        names = tuple(sorted(each.name for each in accelerators if each.kind == kind))
        items = tuple(
            Item(
                each.model,
                point.batch_size,
                point.throughput_rps,
                point.compute_pct(metric),
                point.memory_pct,
            )
            for each in ordered
            for point in profiles.feasible(each, kind)
        )
        kinds.append(KindItems(names, items, ()))
    if len(kinds) == 1:  # else a batch may be of use on one kind only
        kinds = [replace(kinds[0], items=_useful(kinds[0].items, ordered))]
    solved = _solve(ordered, kinds)
    placement = make_placement(
        f"{metric}-milp",
        solved.replicas,
        workloads,
        capacity=profiled_capacity(profiles, accelerators),
        bound_rps=min(solved.bound_rps, throughput_bound(workloads, accelerators, profiles)),
        reasons=unservable_reasons(workloads, accelerators, profiles),
    )
    is_small = len(kinds) == 1 and len(workloads) <= _SMALL
    if is_small and gap_ratio(placement) > _PROVEN:
        heuristic = plan_usher(
            metric, workloads, accelerators, profiles, PlanParams(has_shares=False)
        )
        if heuristic.total_rps > placement.total_rps:
            return replace(heuristic, planner=placement.planner, bound_rps=placement.bound_rps)
    return placement


def _useful(items: Sequence[Item], workloads: Sequence[Workload]) -> tuple[Item, ...]:
    """Without batches for which a smaller one serves as much and needs no more, so that it wins."""
    rates = {each.model: each.rate_rps for each in workloads}
    return tuple(
        each
        for each in items
        if not any(
            other.model == each.model
            and other.batch_size < each.batch_size
            and other.throughput_rps >= min(each.throughput_rps, rates[each.model])
            and other.compute_pct <= each.compute_pct
            and other.memory_pct <= each.memory_pct
            for other in items
        )
    )


def _solve(workloads: Sequence[Workload], kinds: Sequence[KindItems]) -> SolvedProgram:
    """With all patterns, or, if they are too many, with those that a relaxation asks for."""
    try:
        whole = [replace(each, patterns=patterns_of(each.items, _MAX_PATTERNS)) for each in kinds]
    except TooManyPatterns:
        return _solve_by_columns(workloads, kinds)
    return GoodputProgram(workloads, whole).solve()


def _solve_by_columns(workloads: Sequence[Workload], kinds: Sequence[KindItems]) -> SolvedProgram:
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
        value, prices = GoodputProgram(workloads, kinds).relaxed()
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
    found = GoodputProgram(workloads, kinds).solve_roughly(gap_ratio=_LARGE_GAP)
    return SolvedProgram(found.replicas, bound)


def _first_values(kind: KindItems, workloads: Sequence[Workload]) -> dict[Item, float]:
    """What one replica serves."""
    rates = {each.model: each.rate_rps for each in workloads}
    return {item: min(rates[item.model], item.throughput_rps) for item in kind.items}


# Usher, at whose plans `predicted-goodput` begins, and the program, each by three metrics.


ByMetric: TypeAlias = Callable[
    [Metric, Sequence[Workload], Sequence[AcceleratorView], Profiles, PlanParams], Placement
]


def _planner(plan: ByMetric, metric: Metric) -> Plan:
    def planned(
        workloads: Sequence[Workload],
        accelerators: Sequence[AcceleratorView],
        profiles: Profiles,
        _current: Sequence[PlacedReplica],
        params: PlanParams,
    ) -> Placement:
        return plan(metric, workloads, accelerators, profiles, params)

    return planned


def _usher(
    metric: Metric,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    params: PlanParams,
) -> Placement:
    validate(workloads, accelerators, profiles, of_one_kind())
    return plan_usher(metric, workloads, accelerators, profiles, params)


USHER: Final = _planner(_usher, Metric.ACHIEVED_OCCUPANCY)
WAO_USHER: Final = _planner(_usher, Metric.MEAN_OCCUPANCY)
WSM_USHER: Final = _planner(_usher, Metric.SM_UTILIZATION)
AO_MILP: Final = _planner(plan_milp, Metric.ACHIEVED_OCCUPANCY)
WAO_MILP: Final = _planner(plan_milp, Metric.MEAN_OCCUPANCY)
WSM_MILP: Final = _planner(plan_milp, Metric.SM_UTILIZATION)
