"""iGniter's coefficients from a measured profile: batches, shares of the accelerator, and pairs.

Power, frequency and the time between kernels are not in a profile: they count as constant. What a
model takes from its neighbours is, for want of the L2 cache's utilisation, the multiprocessors or
cores that they keep busy.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.placement.planners.igniter_coefficients import fit_noisy
from autoscaler.placement.planners.igniter_latency import active_alone
from autoscaler.placement.planners.problem import WHOLE_PCT
from registry.domain.igniter import HardwareCoefficients, IgniterFit, ModelCoefficients

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from registry.domain.profile import Profile, ProfilePoint

_MIN_BATCHES: Final = 3
"""Formula 5 is of second degree in the batch size."""


def fit_profile(profile: Profile, neighbour_used_pct: Mapping[str, float]) -> IgniterFit | None:
    """None without three batch sizes and a share below the whole, which formula 5 needs.

    `neighbour_used_pct`: what the neighbours of the measured pairs kept busy, by name. Shares below
    the smallest that was measured are not planned.
    """
    batch, share, active_ms = _latencies(profile)
    if len(set(batch.tolist())) < _MIN_BATCHES or len(set(share.tolist())) < 2:
        return None
    model = ModelCoefficients(
        k=fit_noisy(batch, share, active_ms), idle_ms=0.0, kernels=0,
        cache_slope=_slowdown_per_pct(profile, neighbour_used_pct), power=(0.0, 0.0),
        l2=_used_by_ability(profile.points), input_bytes=0.0, output_bytes=0.0,
    )  # fmt: skip
    sizes = zip(batch.tolist(), share.tolist(), active_ms.tolist(), strict=True)
    errors = [abs(active_alone(model, int(size), part) / ms - 1) for size, part, ms in sizes]
    pairs = [each.neighbour for each in profile.pairs if each.neighbour in neighbour_used_pct]
    return IgniterFit(
        model,
        HardwareCoefficients(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, float(share.min()), 1.0),
        f"fitted to {len(errors)} latencies (mean error {100 * fmean(errors):.0f} %) and "
        f"{len(pairs)} pairs; estimated: busy cores or multiprocessors stand for the L2 cache; not "
        "measured: power, frequency, transfers",
    )


def slower(model: ModelCoefficients, factor: float) -> ModelCoefficients:
    """The coefficients of a model whose batches take so many times as long."""
    k1, k2, k3, k4, k5 = model.k
    return replace(
        model, k=(k1 * factor, k2 * factor, k3 * factor, k4, k5 * factor),
        idle_ms=model.idle_ms * factor,
        power=(model.power[0] * factor, model.power[1]), l2=(model.l2[0] * factor, model.l2[1]),
    )  # fmt: skip


def mean_used_pct(points: Sequence[ProfilePoint]) -> float:
    """Busy multiprocessors or cores over batch sizes; all of them where not measured."""
    return fmean(_used_pct(each) for each in points) if points else WHOLE_PCT


def _used_pct(point: ProfilePoint) -> float:
    return WHOLE_PCT if point.sm_utilization_pct is None else point.sm_utilization_pct


def _latencies(
    profile: Profile,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Batch sizes, shares in % and times in ms, with the whole accelerator and with shares."""
    whole = {each.rows: 1000 * each.latency_s for each in profile.points}
    found = {(rows, WHOLE_PCT): ms for rows, ms in whole.items()}
    for each in profile.shares:
        if each.rows in whole and each.share_pct < WHOLE_PCT:
            found[each.rows, each.share_pct] = whole[each.rows] * each.factor
    rows = [(float(size), share, ms) for (size, share), ms in sorted(found.items())]
    batch, share, active_ms = np.array(rows).reshape(-1, 3).T
    return batch, share, active_ms


def _slowdown_per_pct(profile: Profile, used_pct: Mapping[str, float]) -> float:
    """Mean over the measured pairs; 0 without any."""
    found = [
        (each.factor - 1) / used_pct[each.neighbour]
        for each in profile.pairs
        if used_pct.get(each.neighbour, 0.0) > 0
    ]
    return fmean(found) if found else 0.0


def _used_by_ability(points: Sequence[ProfilePoint]) -> tuple[float, float]:
    """Slope and offset of what the model keeps busy over its batch / time (per second)."""
    ability = [each.rows_per_s for each in points]
    used = [_used_pct(each) for each in points]
    if len(set(used)) == 1 or len(set(ability)) == 1:
        return 0.0, fmean(used)
    slope, offset = np.polyfit(ability, used, 1)
    return float(slope), float(offset)
