"""iGniter's coefficients: what is measured, and what is fitted to it.

Source: Xu et al., TPDS 34(3), 2022, formulas 1-11, and the measurements published with it. Times
are in ms, shares in % of a GPU, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from registry.domain.igniter import HardwareCoefficients, ModelCoefficients

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    coarse = min(_OFFSETS, key=lambda k4: _solve_for(k4, batch, share, active_ms)[0])
    around = coarse + np.linspace(-_OFFSET_STEP, _OFFSET_STEP, 81)
    k4 = min(around, key=lambda each: _solve_for(each, batch, share, active_ms)[0])
    k1, k2, k3, k5 = _solve_for(k4, batch, share, active_ms)[1]
    return k1, k2, k3, float(k4), k5


def _solve_for(
    k4: float,
    batch: NDArray[np.float64],
    share: NDArray[np.float64],
    active_ms: NDArray[np.float64],
) -> tuple[float, tuple[float, float, float, float]]:
    """The squared error and k1, k2, k3, k5."""
    under = 1 / (share + k4)
    matrix = np.stack([batch**2 * under, batch * under, under, np.ones_like(share)], axis=1)
    solution, *_ = np.linalg.lstsq(matrix, active_ms, rcond=None)
    k1, k2, k3, k5 = (float(each) for each in solution)
    return float(np.sum((matrix @ solution - active_ms) ** 2)), (k1, k2, k3, k5)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and offset of the least-squares line."""
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(offset)
