"""iGniter's coefficients: what is measured, and what is fitted to it.

Source: Xu et al., TPDS 34(3), 2022, formulas 1-11, and the measurements published with it. Times
are in ms, shares in % of a GPU, as published.

They are fitted to measured profiles as well: batches, shares and pairs. Power, frequency and the
time between kernels are not in a profile: they count as constant. What a model takes from its
neighbours is, for want of the L2 cache's utilisation, the multiprocessors or cores that they keep
busy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import fmean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.placement.problem import WHOLE_PCT
from registry.domain.pod import Profile, ProfilePoint
from research.placement.igniter_model import (
    HardwareCoefficients,
    IgniterFit,
    ModelCoefficients,
    active_alone,
)

Solver = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


Table = tuple[tuple[float, ...], ...]

BATCHES: Final = (1, 16, 32)
"""Rows of a model's tables."""
SHARES_PCT: Final = (10.0, 50.0, 100.0)
"""Columns of a model's tables."""
_MIN_BATCHES: Final = 3
"""Formula 5 is of second degree in the batch size."""
_OFFSET_STEP: Final = 0.5
_OFFSETS: Final = np.arange(-9.0, 50.0, _OFFSET_STEP)
"""Values of k4 that are tried: it must stay above the negated smallest share."""


def busy_pct(point: ProfilePoint) -> float:
    """Busy multiprocessors or cores, in %; 100 if not measured."""
    return 100.0 if point.sm_utilization_pct is None else point.sm_utilization_pct


def mean_busy_pct(points: Sequence[ProfilePoint]) -> float:
    """Mean of `busy_pct` over batch sizes; 100 without points."""
    return fmean(map(busy_pct, points)) if points else 100.0


@dataclass(frozen=True, slots=True)
class HardwareMeasurements:
    """Of one kind of GPU. Lists are over 1, 2, … co-located models."""

    power_cap_w: float
    idle_power_w: float
    max_frequency_mhz: float
    power_w: tuple[float, ...]
    frequency_mhz: tuple[float, ...]
    idle_ms: tuple[float, ...]
    """Between two kernels."""
    share_step_pct: float
    bandwidth_bytes_per_ms: float


@dataclass(frozen=True, slots=True)
class ModelMeasurements:
    """Of one model on one kind of GPU; tables are by batch and share."""

    latency_ms: Table
    power_w: Table
    frequency_mhz: Table
    l2_pct: tuple[float, ...]
    """Utilisation of the L2 cache at (1, 10), (16, 50), (32, 100)."""
    idle_ms: float
    """Alone, all kernels together."""
    active_ms: float
    """Alone."""
    shared_active_ms: float
    """Beside another model, whose L2 utilisation is `shared_l2_pct`."""
    shared_frequency_mhz: float
    shared_l2_pct: float
    kernels: int
    input_bytes: float
    output_bytes: float


def fit_hardware(measured: HardwareMeasurements) -> HardwareCoefficients:
    """Steps 3 and 7: idle time by co-located models, and frequency by power above the cap."""
    counts = np.arange(1, len(measured.idle_ms) + 1, dtype=float)
    corrected = np.array(measured.idle_ms) * np.array(measured.frequency_mhz)
    corrected /= measured.max_frequency_mhz
    increase = corrected - corrected[0]
    idle_slope, idle_offset = _line(counts[1:], increase[1:])
    below = [
        at for at, each in enumerate(measured.frequency_mhz) if each >= measured.max_frequency_mhz
    ]
    slope, offset = _line(counts[below], np.array(measured.power_w)[below])
    demand = slope * counts + offset
    over = [at for at in range(len(counts)) if at not in below]
    excess = demand[over] - measured.power_cap_w
    lost = np.array(measured.frequency_mhz)[over] - measured.max_frequency_mhz
    frequency_slope = float(excess @ lost / (excess @ excess)) if over else 0.0
    return HardwareCoefficients(
        measured.power_cap_w,
        measured.idle_power_w,
        measured.max_frequency_mhz,
        frequency_slope,
        idle_slope,
        idle_offset,
        measured.share_step_pct,
        measured.bandwidth_bytes_per_ms,
    )


def fit_model(measured: ModelMeasurements, hardware: HardwareMeasurements) -> ModelCoefficients:
    """Steps 4-6."""
    top = hardware.max_frequency_mhz
    frequency = np.array(measured.frequency_mhz)
    active = np.array(measured.latency_ms) * frequency / top - measured.idle_ms
    batches, shares = np.meshgrid(BATCHES, SHARES_PCT, indexing="ij")
    k = fit_active(batches.ravel().astype(float), shares.ravel(), active.ravel())
    shared_ms = measured.shared_active_ms * measured.shared_frequency_mhz / top
    ability = 1000 * batches / active
    at_top = frequency >= top
    power = np.array(measured.power_w) - hardware.idle_power_w
    diagonal = np.arange(len(BATCHES))
    return ModelCoefficients(
        k,
        measured.idle_ms,
        measured.kernels,
        (shared_ms / measured.active_ms - 1) / measured.shared_l2_pct,
        _line(ability[at_top], power[at_top]),
        _line(ability[diagonal, diagonal], np.array(measured.l2_pct)),
        measured.input_bytes,
        measured.output_bytes,
    )


def fit_active(
    batch: NDArray[np.float64], share: NDArray[np.float64], active_ms: NDArray[np.float64]
) -> tuple[float, float, float, float, float]:
    """Step 5 by least squares: linear in all but k4, which is searched coarsely, then finely."""
    return _fit(batch, share, active_ms, np.ones_like(active_ms), _least_squares)


def fit_noisy(
    batch: NDArray[np.float64], share: NDArray[np.float64], active_ms: NDArray[np.float64]
) -> tuple[float, float, float, float, float]:
    """Step 5 by least relative squares, with no k1, k2, k3 or k5 below 0.

    So noise in the time of a large batch cannot make a small one take less than no time.
    """
    return _fit(batch, share, active_ms, 1 / active_ms, _least_squares_above_0)


def _fit(
    batch: NDArray[np.float64],
    share: NDArray[np.float64],
    active_ms: NDArray[np.float64],
    weights: NDArray[np.float64],
    solve: Solver,
) -> tuple[float, float, float, float, float]:
    offsets = _OFFSETS[-share.min() < _OFFSETS]

    def fit_with(k4: float) -> tuple[float, NDArray[np.float64]]:
        under = 1 / (share + k4)
        terms = np.stack([batch**2 * under, batch * under, under, np.ones_like(share)], axis=1)
        matrix, wanted = terms * weights[:, None], active_ms * weights
        solution = solve(matrix, wanted)
        return float(np.sum((matrix @ solution - wanted) ** 2)), solution

    coarse = min(offsets, key=lambda each: fit_with(each)[0])
    around = coarse + np.linspace(-_OFFSET_STEP, _OFFSET_STEP, 81)
    k4 = min(around[around > -share.min()], key=lambda each: fit_with(each)[0])
    k1, k2, k3, k5 = (float(each) for each in fit_with(k4)[1])
    return k1, k2, k3, float(k4), k5


def _least_squares(matrix: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.lstsq(matrix, wanted, rcond=None)[0], np.float64)


def _least_squares_above_0(
    matrix: NDArray[np.float64], wanted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The best solution without a negative value: each set of values that are not 0 is tried."""
    width = matrix.shape[1]
    best, best_error = np.zeros(width), float(wanted @ wanted)
    subsets = chain.from_iterable(combinations(range(width), size + 1) for size in range(width))
    for columns in map(list, subsets):
        values = _least_squares(matrix[:, columns], wanted)
        error = float(np.sum((matrix[:, columns] @ values - wanted) ** 2))
        if values.min() >= 0 and error < best_error:
            best, best_error = np.zeros(width), error
            best[columns] = values
    return best


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and offset of the least-squares line."""
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(offset)


def fit_profile(profile: Profile, neighbour_used_pct: Mapping[str, float]) -> IgniterFit | None:
    """None without three batch sizes and a share below the whole, which formula 5 needs.

    `neighbour_used_pct`: what the neighbours of the measured pairs kept busy, by name. Shares below
    the smallest that was measured are not planned.
    """
    batch, share, active_ms = _latencies(profile)
    if len(set(batch.tolist())) < _MIN_BATCHES or len(set(share.tolist())) < 2:
        return None
    model = ModelCoefficients(
        k=fit_noisy(batch, share, active_ms),
        idle_ms=0.0,
        kernels=0,
        cache_slope=_slowdown_per_pct(profile, neighbour_used_pct),
        power=(0.0, 0.0),
        l2=_used_by_ability(profile.points),
        input_bytes=0.0,
        output_bytes=0.0,
    )
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
    used = [busy_pct(each) for each in points]
    if len(set(used)) == 1 or len(set(ability)) == 1:
        return 0.0, fmean(used)
    slope, offset = np.polyfit(ability, used, 1)
    return float(slope), float(offset)
