"""Usher: groups of complementary models, placed one group after the other.

Source: Shubha et al., OSDI 2024, as rebuilt in Elvinger 2024, sections 5.2 and 5.3; where both are
silent, `docs/placement.md` says which reading is used. Reads of the params: `has_shares`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import ceil
from typing import Final

import numpy as np

from autoscaler.placement.plan import (
    Placement,
    make_placement,
    profiled_capacity,
    throughput_bound,
    unservable_reasons,
)
from autoscaler.placement.problem import (
    FITS_PCT,
    AcceleratorView,
    BatchPoint,
    Metric,
    PlanParams,
    Profiles,
    Workload,
)
from registry.domain.records import PlacedReplica

_ROUNDS: Final = 2
"""Groups of at most 2 ** rounds models."""
_SQUARE_WEIGHT: Final = 1e-9
"""Among matchings of equal weight the one with the largest sum of squares is taken."""


@dataclass(frozen=True, slots=True, order=True)
class ModelNeed:
    """The needs of a model, each summed over its batch sizes, in %."""

    model: str
    compute_pct: float
    memory_pct: float


def _distance(needs: Sequence[ModelNeed]) -> float:
    """D = |sum of Creq - sum of Mreq|."""
    return abs(sum(each.compute_pct - each.memory_pct for each in needs))


def _total(group: Sequence[ModelNeed]) -> float:
    return sum(each.compute_pct + each.memory_pct for each in group)


def _merge_pairs(groups: list[tuple[ModelNeed, ...]]) -> list[tuple[ModelNeed, ...]]:
    import networkx as nx  # 0.5 s that no other command has to wait for

    graph = nx.Graph()
    graph.add_nodes_from(range(len(groups)))
    for left, right in combinations(range(len(groups)), 2):
        apart = _distance((*groups[left], *groups[right]))
        graph.add_edge(left, right, weight=apart - _SQUARE_WEIGHT * apart**2)
    matched = sorted(tuple(sorted(pair)) for pair in nx.min_weight_matching(graph))
    merged = [tuple(sorted(groups[left] + groups[right])) for left, right in matched]
    taken = {each for pair in matched for each in pair}
    merged += [group for at, group in enumerate(groups) if at not in taken]
    return sorted(merged)


_NAMES: Final = {
    Metric.ACHIEVED_OCCUPANCY: "usher",
    Metric.MEAN_OCCUPANCY: "wao-usher",
    Metric.SM_UTILIZATION: "wsm-usher",
}
_HEAVY_RATIO: Final = 1.2
_MULTIPLES: Final = 6
"""Replicas of a model: 1 to 6 times the fewest that carry its rate."""


@dataclass(frozen=True, slots=True)
class _Option:
    """A batch size and a number of replicas for one model."""

    model: str
    rate_rps: float
    batch_size: int
    count: int
    throughput_rps: float
    compute_pct: float
    memory_pct: float

    @property
    def most_rps(self) -> float:
        return min(self.rate_rps, self.count * self.throughput_rps)


@dataclass(slots=True)
class _Cluster:
    """Compute and memory in use by accelerator, in %, and the members of the current group."""

    compute: list[float]
    memory: list[float]
    placed: list[tuple[_Option, int]]
    """Options and accelerators of all groups so far."""

    def copy(self) -> "_Cluster":
        return _Cluster(self.compute[:], self.memory[:], self.placed[:])


def plan_usher(
    metric: Metric,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    params: PlanParams,
) -> Placement:
    """Usher with the given metric as the compute need, on accelerators of one kind."""
    names = sorted(each.name for each in accelerators)
    kind = accelerators[0].kind
    batches = {each.model: profiles.feasible(each, kind) for each in workloads}
    served = {each.model: each for each in workloads if batches[each.model]}
    options = {
        model: _options(workload, batches[model], metric, len(names))
        for model, workload in served.items()
    }
    reasons = unservable_reasons(workloads, accelerators, profiles)
    for model in served:
        if not options[model]:
            fewest = _fewest(served[model], batches[model])
            reasons[model] = f"needs {fewest} replicas at its largest batch, of {len(names)} GPUs"
    cluster = _Cluster([0.0] * len(names), [0.0] * len(names), [])
    for group in _groups(served, batches, metric):
        cluster = _place_group([options[model] for model in group if options[model]], cluster)
    replicas = [
        PlacedReplica(
            option.model,
            names[at],
            option.batch_size,
            option.compute_pct if params.has_shares else None,
        )
        for option, at in cluster.placed
    ]
    return make_placement(
        _NAMES[metric],
        replicas,
        workloads,
        capacity=profiled_capacity(profiles, accelerators),
        bound_rps=throughput_bound(workloads, accelerators, profiles),
        reasons=reasons,
    )


def _groups(
    served: dict[str, Workload], batches: dict[str, tuple[BatchPoint, ...]], metric: Metric
) -> list[tuple[str, ...]]:
    """The groups, by falling sum of needs: the order in which they are placed.

    Groups of at most four models whose needs of compute and memory balance, merged in pairs by two
    rounds of a matching of minimum weight (Elvinger 2024, 5.2.2).
    """
    groups: list[tuple[ModelNeed, ...]] = []
    for model in sorted(served):
        compute_pct = sum(each.compute_pct(metric) for each in batches[model])
        memory_pct = sum(each.memory_pct for each in batches[model])
        groups.append((ModelNeed(model, compute_pct, memory_pct),))
    for _ in range(_ROUNDS):
        groups = _merge_pairs(groups)
    groups.sort(key=lambda group: (-_total(group), group))
    return [tuple(each.model for each in group) for group in groups]


def _fewest(workload: Workload, batches: Sequence[BatchPoint]) -> int:
    """c: the fewest replicas that carry the rate, at the largest batch."""
    return max(1, ceil(workload.rate_rps / batches[-1].throughput_rps))


def _options(
    workload: Workload, batches: Sequence[BatchPoint], metric: Metric, accelerators: int
) -> list[_Option]:
    """Batches and replica counts i c (5.2.2), up to the first i with which they carry the rate.

    Our reading: all i c replicas are placed, also where fewer carry the rate (3 of 4, say), since
    5.2.2 takes the number of replicas from the multiples of c; 5.2.1 adds GPUs until the load of
    a model is served. `ao-milp` has no multiples.
    """
    fewest = _fewest(workload, batches)
    found = []
    for point in batches:
        for multiple in range(1, _MULTIPLES + 1):
            count = multiple * fewest
            if count > accelerators:
                break
            found.append(
                _Option(
                    workload.model,
                    workload.rate_rps,
                    point.batch_size,
                    count,
                    point.throughput_rps,
                    point.compute_pct(metric),
                    point.memory_pct,
                )
            )
            if count * point.throughput_rps >= workload.rate_rps:
                break
    return found


def _place_group(options: Sequence[Sequence[_Option]], cluster: _Cluster) -> _Cluster:
    """The cluster with the best configuration of a group.

    Best: most goodput, then fewest GPUs, replicas, smallest sum of batches, names. Configurations
    are tried by falling goodput if everything fits, until that is below the best.
    """
    if not options:
        return cluster
    configurations = list(product(*options))
    most = np.zeros(1)
    for each in options:
        most = (most[:, None] + np.array([option.most_rps for option in each])).ravel()
    best: tuple[tuple[float, ...], _Cluster] | None = None
    for at in np.argsort(-most, kind="stable"):
        if best is not None and most[at] < -best[0][0] - 1e-9:
            break
        configuration = configurations[at]
        tried = _place(configuration, cluster)
        key = _key(configuration, tried, len(cluster.placed))
        if best is None or key < best[0]:
            best = key, tried
    assert best is not None
    return best[1]


def _key(configuration: Sequence[_Option], cluster: _Cluster, before: int) -> tuple[float, ...]:
    new = cluster.placed[before:]
    counts = dict.fromkeys((option.model for option in configuration), 0)
    for option, _ in new:
        counts[option.model] += 1
    goodput = sum(
        min(each.rate_rps, counts[each.model] * each.throughput_rps) for each in configuration
    )
    return (
        -round(goodput, 9),
        len({at for _, at in cluster.placed}),
        len(new),
        sum(option.batch_size for option, _ in new),
        *(each.batch_size for each in sorted(configuration, key=lambda each: each.model)),
    )


def _place(configuration: Sequence[_Option], cluster: _Cluster) -> _Cluster:
    """Every replica goes to the first fitting GPU: of the group, else used, else empty."""
    after = cluster.copy()
    mine: list[int] = []
    used = {at for _, at in cluster.placed}
    everywhere = range(len(after.compute))
    for option in _in_turn(configuration):
        hosts: set[int] = set()
        for _ in range(option.count):
            others = [at for at in everywhere if at in used and at not in mine]
            empty = [at for at in everywhere if at not in used and at not in mine]
            for at in (*mine, *others, *empty):
                if (
                    at not in hosts
                    and after.compute[at] + option.compute_pct <= FITS_PCT
                    and after.memory[at] + option.memory_pct <= FITS_PCT
                ):
                    break
            else:
                break
            hosts.add(at)
            after.compute[at] += option.compute_pct
            after.memory[at] += option.memory_pct
            after.placed.append((option, at))
            if at not in mine:
                mine.append(at)
    return after


def _in_turn(configuration: Sequence[_Option]) -> list[_Option]:
    """Memory-heavy and compute-heavy models in turn, by falling need; neutral ones last."""
    ordered = sorted(
        configuration, key=lambda each: (-(each.compute_pct + each.memory_pct), each.model)
    )
    memory = [each for each in ordered if each.memory_pct >= _HEAVY_RATIO * each.compute_pct]
    compute = [
        each
        for each in ordered
        if each not in memory and each.compute_pct >= _HEAVY_RATIO * each.memory_pct
    ]
    neutral = [each for each in ordered if each not in memory and each not in compute]
    turns: list[_Option] = []
    for at in range(max(len(memory), len(compute))):
        turns += memory[at : at + 1] + compute[at : at + 1]
    return turns + neutral
