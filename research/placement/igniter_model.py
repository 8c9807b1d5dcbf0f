"""iGniter's coefficients of a kind of accelerator and of a model on it, and what they predict.

Source: Xu et al., TPDS 34(3), 2022, formulas 1-11 and theorem 1 (Elvinger 2024, section 5.1.2).
Times are in ms, shares in % of an accelerator, as published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Final

from autoscaler.placement.problem import WHOLE_PCT, Profiles

NAME: Final = "igniter"
"""Of the fit in profiles."""


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


@dataclass(frozen=True, slots=True)
class KindCoefficients:
    """The coefficients of one kind of accelerator, and of models on it."""

    hardware: HardwareCoefficients
    models: Mapping[str, ModelCoefficients]


def kind_coefficients(profiles: Profiles, kind: str) -> KindCoefficients | None:
    """With the hardware of the fit that has the largest step of shares; None: no model has one."""
    fits = {
        each.model: (decode_fit(each.fits[NAME]), each.latency_scale)
        for each in profiles.fits
        if each.kind == kind and NAME in each.fits
    }
    if not fits:
        return None
    hardware = max((fit.hardware for fit, _ in fits.values()), key=lambda each: each.share_step_pct)
    return KindCoefficients(
        hardware, {model: slower(fit.model, scale) for model, (fit, scale) in fits.items()}
    )


def decode_fit(stored: Mapping[str, Any]) -> IgniterFit:
    """As profiles store it; raises TypeError, LookupError."""
    model = {name: stored["model"][name] for name in ModelCoefficients.__slots__}
    for name in ("k", "power", "l2"):
        model[name] = tuple(model[name])
    hardware = {name: stored["hardware"][name] for name in HardwareCoefficients.__slots__}
    return IgniterFit(
        ModelCoefficients(**model), HardwareCoefficients(**hardware), stored["source"]
    )


def slower(model: ModelCoefficients, factor: float) -> ModelCoefficients:
    """The coefficients of a model whose batches take so many times as long."""
    k1, k2, k3, k4, k5 = model.k
    return replace(
        model,
        k=(k1 * factor, k2 * factor, k3 * factor, k4, k5 * factor),
        idle_ms=model.idle_ms * factor,
        power=(model.power[0] * factor, model.power[1]),
        l2=(model.l2[0] * factor, model.l2[1]),
    )


@dataclass(frozen=True, slots=True)
class Resident:
    """A model on a GPU, its batch size and share."""

    model: ModelCoefficients
    batch_size: int
    share_pct: float


@dataclass(frozen=True, slots=True)
class LatencyMs:
    load: float
    gpu: float
    feedback: float

    @property
    def total(self) -> float:
        """Formula 1."""
        return self.load + self.gpu + self.feedback


def active_alone(model: ModelCoefficients, batch_size: int, share_pct: float) -> float:
    """Formula 5."""
    k1, k2, k3, k4, k5 = model.k
    return (k1 * batch_size**2 + k2 * batch_size + k3) / (share_pct + k4) + k5


def predict(residents: Sequence[Resident], hardware: HardwareCoefficients) -> list[LatencyMs]:
    """The latency of each of the models that share a GPU."""
    alone = [active_alone(each.model, each.batch_size, each.share_pct) for each in residents]
    ability = [1000 * each.batch_size / ms for each, ms in zip(residents, alone, strict=True)]
    l2 = [
        each.model.l2[0] * able + each.model.l2[1]
        for each, able in zip(residents, ability, strict=True)
    ]
    demand = hardware.idle_power_w + sum(
        each.model.power[0] * able + each.model.power[1]
        for each, able in zip(residents, ability, strict=True)
    )
    excess = max(0.0, demand - hardware.power_cap_w)
    frequency = hardware.max_frequency_mhz + hardware.frequency_slope * excess
    frequency /= hardware.max_frequency_mhz
    increase = 0.0
    if len(residents) > 1:
        increase = hardware.idle_slope_ms * len(residents) + hardware.idle_offset_ms
    latencies = []
    for each, ms, mine in zip(residents, alone, l2, strict=True):
        scheduling = each.model.idle_ms + each.model.kernels * increase
        active = ms * (1 + each.model.cache_slope * (sum(l2) - mine))
        latencies.append(
            LatencyMs(
                each.model.input_bytes * each.batch_size / hardware.bandwidth_bytes_per_ms,
                (scheduling + active) / frequency,
                each.model.output_bytes * each.batch_size / hardware.bandwidth_bytes_per_ms,
            )
        )
    return latencies


def batch_size(
    model: ModelCoefficients, hardware: HardwareCoefficients, *, half_slo_ms: float, rate_rps: float
) -> int:
    """Step 8: as many requests as arrive while one batch is computed within half the SLO."""
    bandwidth, per_ms = hardware.bandwidth_bytes_per_ms, rate_rps / 1000
    full = half_slo_ms * per_ms * bandwidth / (bandwidth + model.input_bytes * per_ms)
    return max(1, ceil(full - 1e-9))


def lower_bound_pct(
    model: ModelCoefficients,
    hardware: HardwareCoefficients,
    batch: int,
    *,
    half_slo_ms: float,
    rate_rps: float = 0.0,
) -> float:
    """The smallest share with which the model alone is within half its SLO; inf: none.

    It also carries the rate, which follows for the batch of step 8, not for a smaller one.
    """
    k1, k2, k3, k4, k5 = model.k
    returned_ms = model.output_bytes * batch / hardware.bandwidth_bytes_per_ms
    moved_ms = model.input_bytes * batch / hardware.bandwidth_bytes_per_ms + returned_ms
    gpu_ms = min(half_slo_ms - moved_ms, longest_batch_ms(batch, rate_rps) - returned_ms)
    left_ms = gpu_ms - model.idle_ms - k5
    if left_ms <= 0:
        return inf
    share = (k1 * batch**2 + k2 * batch + k3) / left_ms - k4
    step = hardware.share_step_pct
    stepped = max(step, ceil(share / step - 1e-9) * step)
    return max(share, min(stepped, WHOLE_PCT))


def longest_batch_ms(batch: int, rate_rps: float) -> float:
    """Time on the GPU and for outputs within which batches that follow one another carry a rate."""
    return 1000 * batch / rate_rps if rate_rps > 0 else inf
