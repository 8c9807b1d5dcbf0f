"""iGniter's coefficients of a kind of accelerator and of a model on it, as profiles store them.

Source: Xu et al., TPDS 34(3), 2022, formulas 1-11. Times are in ms, shares in % of an accelerator,
as published. Fits and predictions are the planner's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HardwareCoefficients:
    power_cap_w: float
    idle_power_w: float
    max_frequency_mhz: float
    frequency_slope: float
    """MHz per W of demand above the cap; at most 0."""
    idle_slope_ms: float
    """Per kernel and co-located model."""
    idle_offset_ms: float
    share_step_pct: float
    bandwidth_bytes_per_ms: float


@dataclass(frozen=True, slots=True)
class ModelCoefficients:
    """Formula 5: active = (k1 b² + k2 b + k3) / (r + k4) + k5."""

    k: tuple[float, float, float, float, float]
    idle_ms: float
    kernels: int
    cache_slope: float
    """Increase of the active time per % of L2 that others use."""
    power: tuple[float, float]
    """Slope and offset over the processing ability b / active (per second), in W."""
    l2: tuple[float, float]
    """Slope and offset over the processing ability, in %."""
    input_bytes: float
    output_bytes: float


@dataclass(frozen=True, slots=True)
class IgniterFit:
    """The coefficients of one model on one kind of accelerator."""

    model: ModelCoefficients
    hardware: HardwareCoefficients
    source: str
    """What they are fitted to, and what was not measured."""
