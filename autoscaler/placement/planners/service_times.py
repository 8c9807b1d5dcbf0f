"""Times of one batch: by batch size, share of the accelerator, and busy neighbours.

Estimates, where nothing was measured, are fitted to what Elvinger 2024 states for a V100.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from typing import Final

from autoscaler.placement.planners.problem import WHOLE_PCT, BatchPoint, ModelProfile, Profiles

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
    is_estimated: bool
    """Whether the share was not measured."""
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
    """Times of batches up to `batch_size`, slower where the share is below the need."""
    used = [each for each in points if each.batch_size <= batch_size] or list(points[:1])
    factors = [share_slowdown(each, share_pct) for each in used]
    return BatchTimes(
        model,
        tuple(each.batch_size for each in used),
        tuple(each.latency_s * factor for each, factor in zip(used, factors, strict=True)),
        tuple(each.sm_utilization_pct for each in used),
        any(is_share_estimated(each, share_pct) for each in used),
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


def is_share_estimated(point: BatchPoint, share_pct: float | None) -> bool:
    """Whether the slowdown by the share lies outside of what was measured."""
    if share_pct is None or share_pct >= WHOLE_PCT:
        return False
    return not point.share_factors or share_pct < point.share_factors[0][0]


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
