"""iGniter's prediction of latency beside other models, and its lower bound of the share.

Source: Xu et al. 2022, formulas 1-11 and theorem 1 (Elvinger 2024, section 5.1.2). Times in ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.igniter import HardwareCoefficients, ModelCoefficients


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
    model: ModelCoefficients, hardware: HardwareCoefficients, batch: int, *, half_slo_ms: float
) -> float:
    """The smallest share with which the model alone is within half its SLO; inf: none."""
    k1, k2, k3, k4, k5 = model.k
    moved = (model.input_bytes + model.output_bytes) * batch / hardware.bandwidth_bytes_per_ms
    left_ms = half_slo_ms - moved - model.idle_ms - k5
    if left_ms <= 0:
        return inf
    share = (k1 * batch**2 + k2 * batch + k3) / left_ms - k4
    step = hardware.share_step_pct
    return max(step, ceil(share / step - 1e-9) * step)
