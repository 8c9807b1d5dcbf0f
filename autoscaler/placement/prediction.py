"""Predicts which part of each model's requests a plan serves within the SLO.

Neighbours slow batches down by how busy they are, which depends on how slow they are: a fixed
point. Requests wait for the device, or as the router's queue says.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log
from typing import Final

from autoscaler.placement.problem import (
    WHOLE_PCT,
    BatchPoint,
    ModelProfile,
    PlanParams,
    Profiles,
    Workload,
)
from autoscaler.placement.queueing import QueueOutcome, bulk_queue
from registry.domain.records import PlacedReplica

_SHARE_EXPONENT: Final = 1.62
"""Slowdown by a share: (SM utilisation / share) to this power. Least squares over two values:
resnet50 batch 4 at 17.55 % about 4 times (section 6.2.1), bert batch 4 at 31.83 % from 34 to 180
ms (section 6.2.2)."""
_OVERLAP: Final = 0.85
"""Slowdown while a neighbour computes, where both need all multiprocessors. From resnet50 batch 4
beside alexnet batch 4, both at 433 req/s: 6.8 to 8 ms (section 6.2.1, observation 4)."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """A model's times on one kind of accelerator, alone, with one share."""

    model: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    sm_utilization_pct: tuple[float, ...]
    share_pct: float = WHOLE_PCT

    def seconds_of(self, batch_size: int) -> float:
        """Linear between measured batches; below the smallest, its time."""
        at = bisect_left(self.sizes, batch_size)
        if at == 0:
            return self.seconds[0]
        if at == len(self.sizes):
            return self.seconds[-1] * batch_size / self.sizes[-1]
        low, high = self.sizes[at - 1], self.sizes[at]
        part = (batch_size - low) / (high - low)
        return self.seconds[at - 1] + part * (self.seconds[at] - self.seconds[at - 1])

    def used_pct(self, batch_size: int) -> float:
        """SM utilisation of the smallest measured batch that is as large; at most the share."""
        at = min(bisect_left(self.sizes, batch_size), len(self.sizes) - 1)
        return min(self.sm_utilization_pct[at], self.share_pct)

    def by_size(self, batch_size: int) -> tuple[float, ...]:
        """Times of batches of 1 to `batch_size`."""
        return tuple(self.seconds_of(size) for size in range(1, batch_size + 1))


@lru_cache(maxsize=4096)
def batch_times(
    model: str, points: tuple[BatchPoint, ...], batch_size: int, share_pct: float | None
) -> BatchTimes:
    """Times of batches up to `batch_size`, slower where the share is below the need.

    Slowdowns that were not measured are fitted to what Elvinger 2024 states for a V100.
    """
    used = [each for each in points if each.batch_size <= batch_size] or list(points[:1])
    factors = [share_slowdown(each, share_pct) for each in used]
    return BatchTimes(
        model,
        tuple(each.batch_size for each in used),
        tuple(each.latency_s * factor for each, factor in zip(used, factors, strict=True)),
        tuple(each.sm_utilization_pct for each in used),
        WHOLE_PCT if share_pct is None else share_pct,
    )


def scaled(profile: ModelProfile, factor: float) -> ModelProfile:
    """The profile of a model whose batches take so many times as long as measured."""
    points = [
        replace(
            point, latency_s=point.latency_s * factor, throughput_rps=point.throughput_rps / factor
        )
        for point in profile.points
    ]
    return replace(profile, points=tuple(points))


def share_factor(used_pct: float, share_pct: float | None) -> float:
    """Estimated slowdown by a share of a batch that uses so much of the multiprocessors."""
    if share_pct is None or share_pct >= used_pct:
        return 1.0
    return float((used_pct / share_pct) ** _SHARE_EXPONENT)


def share_slowdown(point: BatchPoint, share_pct: float | None) -> float:
    """How many times as long a batch takes with a share.

    Between measured shares the logarithms are interpolated; below the smallest, and without any,
    it is estimated.
    """
    measured = point.share_factors
    if share_pct is None or share_pct >= WHOLE_PCT or not measured:
        return share_factor(point.sm_utilization_pct, share_pct)
    known = [*measured, (WHOLE_PCT, 1.0)]
    at = bisect_left([share for share, _ in known], share_pct)
    high, high_factor = known[at]
    if at == 0:
        return high_factor * share_factor(min(high, point.sm_utilization_pct), share_pct)
    low, low_factor = known[at - 1]
    part = log(share_pct / low) / log(high / low)
    return float(low_factor * (high_factor / low_factor) ** part)


def slowdown_per_busy(
    mine: BatchTimes, my_batch: int, neighbour: BatchTimes, its_batch: int, profiles: Profiles
) -> float:
    """c: how much longer a batch takes per time that the neighbour is busy."""
    for pair in profiles.pairs:
        if (pair.model, pair.neighbour) == (mine.model, neighbour.model):
            return pair.factor - 1
    both = mine.used_pct(my_batch) + neighbour.used_pct(its_batch)
    return _OVERLAP * min(1.0, both / WHOLE_PCT)


_ROUNDS: Final = 8
_STEP: Final = log(1.1)
"""Queues are solved for rates and slowdowns in steps of 10 %; between them it is interpolated."""


@dataclass(slots=True)
class _Running:
    replica: PlacedReplica
    times: BatchTimes
    rate_rps: float
    part: float
    slowdown: float = 1.0
    usual: int = 1
    """Usual size of its batches."""
    busy: float = 0.0

    def use(self, *, is_built: bool) -> None:
        """Set the usual batch and how busy the device is with this replica."""
        size = self.replica.batch_size
        loaded = self.rate_rps * self.times.seconds_of(size) * self.slowdown / size
        if is_built:
            self.usual, self.busy = size, min(1.0, loaded)
            return
        arriving = self.rate_rps * self.times.seconds_of(1) * self.slowdown
        self.usual = max(1, min(size, round(arriving)))
        waiting = self.rate_rps * self.times.seconds_of(self.usual) * self.slowdown
        # A device that takes all that waits: busy for S, then idle if nobody came meanwhile.
        unlimited = waiting / (waiting + exp(-min(waiting, 50.0)))
        self.busy = min(1.0, max(loaded, unlimited if size > 1 else loaded))


class Predictor:
    """Predictions for one problem; profiles and workloads do not change."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        kinds: Mapping[str, str],
        profiles: Profiles,
        params: PlanParams,
    ) -> None:
        """`kinds`: of the accelerators by name."""
        self._workloads = {each.model: each for each in workloads}
        self._kinds = kinds
        self._profiles = profiles
        self._params = params
        self._is_built = params.router is not None

    def in_time(self, replicas: Sequence[PlacedReplica]) -> dict[str, float]:
        """P_m: the part of each model's requests within the SLO."""
        running = self._running(replicas)
        self._settle(running)
        by_model: dict[str, float] = dict.fromkeys(self._workloads, 0.0)
        sizes: defaultdict[str, list[int]] = defaultdict(list)
        for each in running:
            sizes[each.replica.model].append(each.replica.batch_size)
        for each in running:
            model = each.replica.model
            by_model[model] += each.part * self._outcome(each, tuple(sizes[model])).in_time
        return {model: min(1.0, value) for model, value in by_model.items()}

    def parts(self, replicas: Sequence[PlacedReplica]) -> list[float]:
        """Each replica's part of its model's rate."""
        return [each.part for each in self._running(replicas)]

    def service_s(self, replicas: Sequence[PlacedReplica]) -> list[float]:
        """Time of each replica's usual batch, beside its neighbours; no queues are solved."""
        running = self._running(replicas)
        self._settle(running)
        for each in running:
            each.use(is_built=self._is_built)
        return [each.times.seconds_of(each.usual) * each.slowdown for each in running]

    def _running(self, replicas: Sequence[PlacedReplica]) -> list[_Running]:
        """Rates in proportion to throughput; of built batches in turn: to the batch size."""
        times, weights = [], []
        totals: defaultdict[str, float] = defaultdict(float)
        for each in replicas:
            points = self._profiles.points(each.model, self._kinds[each.accelerator])
            mine = batch_times(each.model, points, each.batch_size, each.share_pct)
            times.append(mine)
            slow = each.batch_size / mine.seconds_of(each.batch_size)
            weights.append(float(each.batch_size) if self._is_built else slow)
            totals[each.model] += weights[-1]
        return [
            _Running(
                each,
                mine,
                self._workloads[each.model].rate_rps * weight / totals[each.model],
                weight / totals[each.model],
            )
            for each, mine, weight in zip(replicas, times, weights, strict=True)
        ]

    def _settle(self, running: Sequence[_Running]) -> None:
        """Find slowdowns and busy times that agree, on each accelerator."""
        together: defaultdict[str, list[_Running]] = defaultdict(list)
        for each in running:
            together[each.replica.accelerator].append(each)
        for here in together.values():
            if len(here) == 1:
                continue
            for _ in range(_ROUNDS):
                for each in here:
                    each.use(is_built=self._is_built)
                for each in here:
                    slower = sum(
                        other.busy
                        * slowdown_per_busy(
                            each.times, each.usual, other.times, other.usual, self._profiles
                        )
                        for other in here
                        if other is not each
                    )
                    each.slowdown = 0.5 * each.slowdown + 0.5 * (1 + slower)

    def _outcome(self, each: _Running, batch_sizes: tuple[int, ...]) -> QueueOutcome:
        workload, params = self._workloads[each.replica.model], self._params
        size = each.replica.batch_size
        transfer_s = params.transfer_s.get(workload.model, 0.0)
        overhead_s = params.overhead_s.get(workload.model, 0.0)
        budget_s = workload.slo_s - overhead_s
        late_s = params.late_horizon_s
        if params.router is None:
            queue = _Queue(each.times, size, budget_s - transfer_s, late_s)
            return _interpolated(queue, each.rate_rps, each.slowdown)
        queue = _Queue(each.times, size, budget_s, late_s, params.router, batch_sizes, transfer_s)
        return _interpolated(queue, workload.rate_rps, each.slowdown)


@dataclass(frozen=True, slots=True)
class _Queue:
    """A replica in front of which queues are solved for several rates and slowdowns."""

    times: BatchTimes
    size: int
    budget_s: float
    late_horizon_s: float | None
    router: Callable[..., QueueOutcome] | None = None
    batch_sizes: tuple[int, ...] = ()
    """Of all replicas of the model."""
    transfer_s: float = 0.0


def _interpolated(queue: _Queue, rate_rps: float, slowdown: float) -> QueueOutcome:
    """Between the four nearest points of the grid."""
    if rate_rps <= 0:
        return QueueOutcome(1.0, 0.0)
    low_rate, rate_part = divmod(log(rate_rps) / _STEP, 1)
    low_slow, slow_part = divmod(log(slowdown) / _STEP, 1)
    in_time = busy = 0.0
    for rate_step, rate_weight in ((0, 1 - rate_part), (1, rate_part)):
        for slow_step, slow_weight in ((0, 1 - slow_part), (1, slow_part)):
            weight = rate_weight * slow_weight
            if weight > 1e-6:
                found = _solved(queue, int(low_rate) + rate_step, int(low_slow) + slow_step)
                in_time += weight * found.in_time
                busy += weight * found.busy
    return QueueOutcome(in_time, busy)


@lru_cache(maxsize=1 << 16)
def _solved(queue: _Queue, rate_step: int, slow_step: int) -> QueueOutcome:
    rate_rps, slowdown = exp(rate_step * _STEP), exp(slow_step * _STEP)
    seconds = [slowdown * each for each in queue.times.by_size(queue.size)]
    if queue.router is None:
        return bulk_queue(
            rate_rps=rate_rps,
            seconds=seconds,
            budget_s=queue.budget_s,
            late_horizon_s=queue.late_horizon_s,
        )
    return queue.router(
        rate_rps=rate_rps,
        seconds=seconds,
        batch_sizes=queue.batch_sizes,
        budget_s=queue.budget_s,
        transfer_s=queue.transfer_s,
        late_horizon_s=queue.late_horizon_s,
    )
