"""Policies compared at equal memory: each is a curve over its parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from load.experiments.prewarm.runs import OURS, PEERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from load.experiments.prewarm.runs import PrewarmResult


@dataclass(frozen=True, slots=True)
class AtEqualMemory:
    """One run of ours beside the peers at its memory; None: the peer's curve does not reach it."""

    idle_model_h: float
    cold: float
    """Share of requests that started cold."""
    p75: float
    peers_cold: Mapping[str, float | None]
    peers_p75: Mapping[str, float | None]

    @property
    def is_fewer(self) -> bool:
        """Whether ours has fewer cold starts than every peer that reaches this memory."""
        return all(each is None or self.cold < each for each in self.peers_cold.values())

    @property
    def p75_ratio(self) -> float | None:
        """Ours over the best of the peers; None: none reaches it."""
        known = [each for each in self.peers_p75.values() if each is not None]
        return self.p75 / min(known) if known and min(known) > 0 else None


def at_equal_memory(outcomes: Sequence[PrewarmResult]) -> list[AtEqualMemory]:
    """Each run of ours that at least one peer reaches, by memory."""
    ours = sorted(
        (each for each in outcomes if each.policy == OURS), key=lambda each: each.idle_model_h
    )
    found = [
        AtEqualMemory(
            each.idle_model_h,
            each.cold_share,
            each.p75,
            {peer: _at(outcomes, peer, each, lambda one: one.cold_share) for peer in PEERS},
            {peer: _at(outcomes, peer, each, lambda one: one.p75) for peer in PEERS},
        )
        for each in ours
    ]
    return [each for each in found if any(one is not None for one in each.peers_cold.values())]


def _at(
    outcomes: Sequence[PrewarmResult],
    policy: str,
    ours: PrewarmResult,
    of: Callable[[PrewarmResult], float],
) -> float | None:
    """A peer's figure at the memory of a run, between its runs in proportion to log memory."""
    line = sorted(
        (max(each.idle_model_h, 1e-9), of(each)) for each in outcomes if each.policy == policy
    )
    if not line or not line[0][0] <= ours.idle_model_h <= line[-1][0]:
        return None
    memory, figures = zip(*line, strict=True)
    return float(np.interp(np.log(ours.idle_model_h), np.log(memory), figures))
