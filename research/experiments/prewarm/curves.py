"""Policies compared at equal memory: the results of each are a curve over its parameter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from research.experiments.prewarm.runs import BASELINES, PREDICTIVE, PrewarmResult


@dataclass(frozen=True, slots=True)
class AtEqualMemory:
    """One run of `predictive`, and the baselines at the same memory; None: out of their range."""

    idle_model_h: float
    cold: float
    """Share of requests with a cold start."""
    p75: float
    baselines_cold: Mapping[str, float | None]
    baselines_p75: Mapping[str, float | None]

    @property
    def is_fewer(self) -> bool:
        """True if there are fewer cold starts than with every baseline in range."""
        return all(each is None or self.cold < each for each in self.baselines_cold.values())

    @property
    def p75_ratio(self) -> float | None:
        """`p75` divided by the best baseline's; None if no baseline is in range."""
        known = [each for each in self.baselines_p75.values() if each is not None]
        return self.p75 / min(known) if known and min(known) > 0 else None


def at_equal_memory(results: Sequence[PrewarmResult]) -> list[AtEqualMemory]:
    """Each run of `predictive` with at least one baseline in range, by memory."""
    own = sorted(
        (each for each in results if each.policy == PREDICTIVE), key=lambda each: each.idle_model_h
    )
    found = [
        AtEqualMemory(
            each.idle_model_h,
            each.cold_share,
            each.p75,
            {
                name: _interpolated(results, name, each, lambda one: one.cold_share)
                for name in BASELINES
            },
            {name: _interpolated(results, name, each, lambda one: one.p75) for name in BASELINES},
        )
        for each in own
    ]
    return [each for each in found if any(one is not None for one in each.baselines_cold.values())]


def _interpolated(
    results: Sequence[PrewarmResult],
    policy: str,
    own: PrewarmResult,
    figure: Callable[[PrewarmResult], float],
) -> float | None:
    """A baseline's figure at the memory of `own`, interpolated over the logarithm of memory."""
    curve = sorted(
        (max(each.idle_model_h, 1e-9), figure(each)) for each in results if each.policy == policy
    )
    if not curve or not curve[0][0] <= own.idle_model_h <= curve[-1][0]:
        return None
    memory, figures = zip(*curve, strict=True)
    return float(np.interp(np.log(own.idle_model_h), np.log(memory), figures))
