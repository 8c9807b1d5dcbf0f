"""iGniter: the smallest shares with which all models of a GPU are predicted to be within half SLO.

Source: Xu et al. 2022, algorithms 1 and 2; Elvinger 2024, section 5.1.3. The number of GPUs is
planned freely; of a larger plan the first GPUs are kept (section 5.1.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isfinite
from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.igniter_latency import (
    Resident,
    batch_size,
    lower_bound_pct,
    predict,
)
from autoscaler.placement.planners.plan import UNSERVABLE, make_placement
from autoscaler.placement.planners.problem import FITS_PCT, WHOLE_PCT
from autoscaler.placement.planners.validation import validate
from registry.domain.placement import PlacedReplica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.placement.planners.plan import Placement
    from autoscaler.placement.planners.problem import (
        AcceleratorView,
        PlanParams,
        Profiles,
        Workload,
    )
    from registry.domain.igniter import HardwareCoefficients

_MAX_BATCH: Final = 32
"""The largest batch that was measured."""
_WHOLE_GPU_LOAD: Final = 0.9
"""Part of its predicted throughput that a model alone on a GPU is given (their code)."""
_WITHIN_MS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Demand:
    """A model with its batch size, to be placed at its lower bound or above."""

    name: str
    resident: Resident
    half_slo_ms: float


def igniter(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    current: Sequence[PlacedReplica],
    params: PlanParams,
) -> Placement:
    """Reads of the params: `has_shares`."""
    validate(workloads, accelerators, profiles, one_kind=True, by_coefficients=True)
    kind = accelerators[0].kind
    names = sorted(each.name for each in accelerators)
    hardware = profiles.hardware(kind)
    demands, whole, reasons = [], [], {}
    for each in sorted(workloads, key=lambda workload: workload.model):
        alone, rest_rps = _whole_gpus(each, hardware, profiles, kind)
        whole += alone
        demand = _demand(each, rest_rps, hardware, profiles, kind)
        if demand is not None:
            demands.append(demand)
        elif rest_rps > 0 and not alone:
            reasons[each.model] = f"{UNSERVABLE}: no share keeps it within half its SLO"
    gpus = [*_place(demands, hardware), *([each] for each in whole)]
    for demand in (each for gpu in gpus[len(names) :] for each in gpu):
        reasons[demand.name] = f"iGniter's plan needs {len(gpus)} GPUs, of {len(names)}"
    replicas, served = [], {}
    for name, gpu in zip(names, gpus, strict=False):
        latencies = predict([each.resident for each in gpu], hardware)
        for demand, latency in zip(gpu, latencies, strict=True):
            resident = demand.resident
            share = resident.share_pct if params.has_shares else None
            replicas.append(PlacedReplica(demand.name, name, resident.batch_size, share))
            in_time = latency.total <= 2 * demand.half_slo_ms
            per_s = 1000 * resident.batch_size / (latency.gpu + latency.feedback)
            served[demand.name, name] = per_s if in_time else 0.0
    return make_placement(
        "igniter",
        replicas,
        workloads,
        capacity=lambda replica: served[replica.model, replica.accelerator],
        bound_rps=sum(each.rate_rps for each in workloads),
        reasons=reasons,
    )


def _whole_gpus(
    workload: Workload, hardware: HardwareCoefficients, profiles: Profiles, kind: str
) -> tuple[list[_Demand], float]:
    """Whole GPUs for a model whose lower bound is above 100 %, and the rate that is left."""
    model = profiles.coefficients(workload.model, kind)
    half = workload.slo_s * 1000 / 2
    if workload.rate_rps <= 0:
        return [], 0.0
    wanted = batch_size(model, hardware, half_slo_ms=half, rate_rps=workload.rate_rps)
    wanted = min(wanted, workload.max_batch_size or wanted)
    if lower_bound_pct(model, hardware, wanted, half_slo_ms=half) <= WHOLE_PCT:
        return [], workload.rate_rps
    for size in range(min(_MAX_BATCH, workload.max_batch_size or _MAX_BATCH), 0, -1):
        resident = Resident(model, size, WHOLE_PCT)
        [latency] = predict([resident], hardware)
        if latency.total < half:
            per_s = _WHOLE_GPU_LOAD * 1000 * size / (latency.gpu + latency.feedback)
            count = floor(workload.rate_rps / per_s)
            whole = [_Demand(workload.model, resident, half)] * count
            return whole, workload.rate_rps - count * per_s
    return [], workload.rate_rps


def _demand(
    workload: Workload,
    rate_rps: float,
    hardware: HardwareCoefficients,
    profiles: Profiles,
    kind: str,
) -> _Demand | None:
    """The batch and lower bound of step 8; None if nothing is left or no share suffices."""
    if rate_rps <= 0:
        return None
    model = profiles.coefficients(workload.model, kind)
    half = workload.slo_s * 1000 / 2
    size = batch_size(model, hardware, half_slo_ms=half, rate_rps=rate_rps)
    size = min(size, workload.max_batch_size or size)
    share = lower_bound_pct(model, hardware, size, half_slo_ms=half)
    if not isfinite(share) or share > WHOLE_PCT:
        return None
    return _Demand(workload.model, Resident(model, size, share), half)


def _place(demands: Sequence[_Demand], hardware: HardwareCoefficients) -> list[list[_Demand]]:
    """Step 9: by falling lower bound, each to the GPU where shares increase least."""
    gpus: list[list[_Demand]] = []
    for demand in sorted(demands, key=lambda each: (-each.resident.share_pct, each.name)):
        best: tuple[float, int, list[_Demand]] | None = None
        for at, gpu in enumerate(gpus):
            raised = raise_shares([*gpu, demand], hardware)
            if raised is None:
                continue
            increase = _total_share(raised) - _total_share([*gpu, demand])
            if best is None or increase < best[0] - _WITHIN_MS:
                best = increase, at, raised
        if best is None:
            gpus.append(raise_shares([demand], hardware) or [demand])
        else:
            gpus[best[1]] = best[2]
    return gpus


def raise_shares(
    demands: Sequence[_Demand], hardware: HardwareCoefficients
) -> list[_Demand] | None:
    """Raise the shares of late models by one step until none is late; None: over 100 %."""
    raised = list(demands)
    while _total_share(raised) <= FITS_PCT:
        latencies = predict([each.resident for each in raised], hardware)
        late = [
            latency.total > demand.half_slo_ms + _WITHIN_MS
            for demand, latency in zip(raised, latencies, strict=True)
        ]
        if not any(late):
            return raised
        raised = [
            _with_more(each, hardware.share_step_pct) if is_late else each
            for each, is_late in zip(raised, late, strict=True)
        ]
    return None


def _with_more(demand: _Demand, step_pct: float) -> _Demand:
    before = demand.resident
    more = Resident(before.model, before.batch_size, before.share_pct + step_pct)
    return _Demand(demand.name, more, demand.half_slo_ms)


def _total_share(demands: Sequence[_Demand]) -> float:
    return sum(each.resident.share_pct for each in demands)
