"""Predicted goodput (ours): local search for the plan whose predicted goodput is highest.

Maximises the sum of rate * P_m. Starts from the current plan and from Usher's, and is never
predicted below any. A share is set where it protects a neighbour more than it slows its model.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autoscaler.placement.plan import ModelGoodput, Placement, replica_order, unservable_reasons
from autoscaler.placement.prediction import Predictor
from autoscaler.placement.problem import (
    FITS_PCT,
    AcceleratorView,
    BatchPoint,
    Metric,
    PlanParams,
    Profiles,
    Workload,
    validate,
)
from autoscaler.placement.usher import plan_usher
from registry.domain.records import PlacedReplica

_SERVED: Final = 0.99
"""A model with at least this part in time does not count as short."""
_GAIN_RPS: Final = 0.05
"""A change that gains less is not worth a move."""
_SHARES_PCT: Final = (25.0, 50.0, 75.0)
"""Shares that are tried; their effect is estimated where it was not measured."""
_TIGHTENED: Final = (0.7, 0.5)

Plan = tuple[PlacedReplica, ...]


def predicted_goodput(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    current: Sequence[PlacedReplica],
    params: PlanParams,
) -> Placement:
    """The best plan found with `max_evaluations` predictions."""
    validate(workloads, accelerators, profiles)
    search = _Search(workloads, accelerators, profiles, params)
    starts = [search.known(current), ()]
    starts += _usher_plans(workloads, accelerators, profiles, params)
    scored = sorted(map(search.scored, dict.fromkeys(starts)), key=lambda each: -each.in_time_rps)
    best = max(map(search.climb, scored), key=lambda each: each.in_time_rps)
    return _placement(best, search, workloads, accelerators, profiles)


def _usher_plans(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    params: PlanParams,
) -> list[Plan]:
    """Usher's, by metric, without shares.

    Also for part of the SLO: Usher leaves no time for requests to wait.
    """
    params = replace(params, has_shares=False)

    def by_kind(metric: Metric, left: Sequence[Workload]) -> Plan:
        """Each kind of accelerator gets what those before it do not serve."""
        replicas: list[PlacedReplica] = []
        for kind in sorted({each.kind for each in accelerators}):
            here = [each for each in accelerators if each.kind == kind]
            found = plan_usher(metric, left, here, profiles, params)
            replicas += found.replicas
            short = {each.model: each.shortfall_rps for each in found.models}
            left = [replace(each, rate_rps=short[each.model]) for each in left if short[each.model]]
            if not left:
                break
        return tuple(replace(each, rate_rps=0.0) for each in sorted(replicas, key=replica_order))

    plans = [by_kind(metric, workloads) for metric in Metric]
    for part in _TIGHTENED:
        tighter = [replace(each, slo_s=part * each.slo_s) for each in workloads]
        plans.append(by_kind(Metric.SM_UTILIZATION, tighter))
    return plans


@dataclass(frozen=True, slots=True)
class _Scored:
    plan: Plan
    in_time_rps: float
    in_time: dict[str, float]


class _Search:
    """Hill climbing: the best change of the model that falls shortest, while one gains."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        accelerators: Sequence[AcceleratorView],
        profiles: Profiles,
        params: PlanParams,
    ) -> None:
        self.kinds = {each.name: each.kind for each in sorted(accelerators, key=lambda a: a.name)}
        self._workloads = sorted(workloads, key=lambda each: each.model)
        self.predictor = Predictor(self._workloads, self.kinds, profiles, params)
        self._profiles = profiles
        self._params = params
        self._left = params.max_evaluations
        self._batches = {
            (each.model, kind): profiles.feasible(each, kind)
            for each in self._workloads
            for kind in set(self.kinds.values())
        }

    def known(self, current: Sequence[PlacedReplica]) -> Plan:
        """The running replicas that this problem still has a place and a profile for."""
        models, kinds = {each.model for each in self._workloads}, self.kinds
        found = [
            replace(each, rate_rps=0.0)
            for each in current
            if each.model in models
            and each.accelerator in kinds
            and self._profiles.point(each.model, kinds[each.accelerator], each.batch_size)
        ]
        return tuple(sorted(found, key=replica_order))

    def scored(self, plan: Plan) -> _Scored:
        self._left -= 1
        in_time = self.predictor.in_time(plan)
        total = sum(each.rate_rps * in_time[each.model] for each in self._workloads)
        return _Scored(plan, total, in_time)

    def _is_servable(self, model: str) -> bool:
        return any(self._batches[model, kind] for kind in set(self.kinds.values()))

    def climb(self, start: _Scored) -> _Scored:
        best = start
        while True:
            for model in self._by_shortfall(best):
                better = self._best_change(best, model)
                if better is not None:
                    best = better
                    break
            else:
                return best

    def _by_shortfall(self, found: _Scored) -> list[str]:
        short = {
            each.model: each.rate_rps * (1 - found.in_time[each.model])
            for each in self._workloads
            if self._is_servable(each.model) and each.rate_rps > 0
        }
        return sorted((m for m in short if short[m] > _GAIN_RPS), key=lambda m: (-short[m], m))

    def _best_change(self, found: _Scored, model: str) -> _Scored | None:
        best = None
        for plan in self._changes(found.plan, model):
            if self._left <= 0:
                return best
            tried = self.scored(plan)
            if tried.in_time_rps > (best.in_time_rps if best else found.in_time_rps + _GAIN_RPS):
                best = tried
        return best

    def _changes(self, plan: Plan, model: str) -> Iterator[Plan]:
        """Other batches, a further copy, copies moved, and neighbours that leave or move."""
        mine = [each for each in plan if each.model == model]
        others = tuple(each for each in plan if each.model != model)
        here = {each.accelerator for each in mine}
        if mine:
            yield others
        for kind in dict.fromkeys(self.kinds.values()):
            for point in self._batches[model, kind]:
                if mine:
                    yield from self._fitting(
                        (*others, *(replace(each, batch_size=point.batch_size) for each in mine))
                    )
        if mine and self._params.has_shares:
            yield from self._other_shares(plan, model)
        for name, kind in self.kinds.items():
            neighbours = [each for each in others if each.accelerator == name]
            for point in self._batches[model, kind]:
                new = PlacedReplica(model, name, point.batch_size)
                if name in here:
                    continue
                yield from self._fitting((*plan, new))
                for left in neighbours:
                    rest = tuple(each for each in plan if each is not left)
                    yield from self._fitting((*rest, new))
                for moved in mine:
                    rest = tuple(each for each in plan if each is not moved)
                    yield from self._fitting((*rest, new))
            if name in here:
                for left in neighbours:
                    rest = tuple(each for each in plan if each is not left)
                    yield rest
                    for other in self.kinds:
                        if other != name and not _holds(rest, left.model, other):
                            yield from self._fitting((*rest, replace(left, accelerator=other)))

    def _other_shares(self, plan: Plan, model: str) -> Iterator[Plan]:
        """Other shares of the model's neighbours, and none of its own."""
        here = {each.accelerator for each in plan if each.model == model}
        for at, each in enumerate(plan):
            if each.accelerator not in here:
                continue
            for share_pct in (None,) if each.model == model else (None, *_SHARES_PCT):
                if share_pct != each.share_pct:
                    yield (*plan[:at], replace(each, share_pct=share_pct), *plan[at + 1 :])

    def _fitting(self, plan: Plan) -> Iterator[Plan]:
        """The plan, if every accelerator has room for it."""
        memory: defaultdict[str, float] = defaultdict(float)
        for each in plan:
            point = self._point(each)
            if point is None:
                return
            memory[each.accelerator] += point.memory_pct
        if all(each <= FITS_PCT for each in memory.values()):
            yield tuple(sorted(plan, key=replica_order))

    def _point(self, replica: PlacedReplica) -> BatchPoint | None:
        for each in self._batches[replica.model, self.kinds[replica.accelerator]]:
            if each.batch_size == replica.batch_size:
                return each
        return None


def _holds(plan: Plan, model: str, accelerator: str) -> bool:
    return any(each.model == model and each.accelerator == accelerator for each in plan)


def _placement(
    best: _Scored,
    search: _Search,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
) -> Placement:
    unservable = unservable_reasons(workloads, accelerators, profiles)
    models = []
    for each in sorted(workloads, key=lambda workload: workload.model):
        part = best.in_time[each.model]
        reason = ""
        if part < _SERVED and each.rate_rps > 0:
            copies = sum(replica.model == each.model for replica in best.plan)
            reason = unservable.get(each.model) or (
                f"{part:.1%} within the SLO from {copies} replicas" if copies else "no room"
            )
        models.append(ModelGoodput(each.model, each.rate_rps, part * each.rate_rps, reason))
    rates = {each.model: each.rate_rps for each in workloads}
    parts = search.predictor.parts(best.plan)
    replicas = tuple(
        replace(each, rate_rps=rates[each.model] * part)
        for each, part in zip(best.plan, parts, strict=True)
    )
    bound = sum(each.rate_rps for each in workloads if each.model not in unservable)
    return Placement("predicted-goodput", replicas, tuple(models), bound)
