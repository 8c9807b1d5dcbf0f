"""iGniter's coefficients: what is measured, and what is fitted to it.

Source: Xu et al., TPDS 34(3), 2022, formulas 1-11, and the measurements published with it. Times
are in ms, shares in % of a GPU, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, Final

import numpy as np

from registry.domain.igniter import HardwareCoefficients, ModelCoefficients

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Solver = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

Table = tuple[tuple[float, ...], ...]

BATCHES: Final = (1, 16, 32)
"""Rows of a model's tables."""
SHARES_PCT: Final = (10.0, 50.0, 100.0)
"""Columns of a model's tables."""
_OFFSET_STEP: Final = 0.5
_OFFSETS: Final = np.arange(-9.0, 50.0, _OFFSET_STEP)
"""Values of k4 that are tried: it must stay above the negated smallest share."""


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
        measured.power_cap_w, measured.idle_power_w, measured.max_frequency_mhz,
        frequency_slope, idle_slope, idle_offset,
        measured.share_step_pct, measured.bandwidth_bytes_per_ms,
    )  # fmt: skip


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
        k, measured.idle_ms, measured.kernels,
        (shared_ms / measured.active_ms - 1) / measured.shared_l2_pct,
        _line(ability[at_top], power[at_top]),
        _line(ability[diagonal, diagonal], np.array(measured.l2_pct)),
        measured.input_bytes, measured.output_bytes,
    )  # fmt: skip


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
    batch: NDArray[np.float64], share: NDArray[np.float64], active_ms: NDArray[np.float64],
    weights: NDArray[np.float64], solve: Solver,
) -> tuple[float, float, float, float, float]:  # fmt: skip
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
