"""iGniter: the smallest shares with which all models of a GPU are predicted to be within half SLO.

Source: Xu et al. 2022, algorithms 1 and 2; Elvinger 2024, section 5.1.3. The number of GPUs is
planned freely; of a larger plan the first GPUs are kept (section 5.1.5).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, inf
from typing import Final

from autoscaler.placement.plan import UNSERVABLE, Placement, make_placement
from autoscaler.placement.problem import (
    FITS_PCT,
    WHOLE_PCT,
    AcceleratorView,
    PlanParams,
    Profiles,
    Workload,
    validate,
)
from registry.domain.records import PlacedReplica
from research.placement.fleet import of_one_kind
from research.placement.igniter_model import (
    HardwareCoefficients,
    LatencyMs,
    ModelCoefficients,
    Resident,
    batch_size,
    kind_coefficients,
    longest_batch_ms,
    lower_bound_pct,
    predict,
)

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
    longest_ms: float = inf
    """Of a batch on the GPU and for its outputs; longer ones do not carry the rate."""

    def is_late(self, latency: LatencyMs) -> bool:
        return (
            latency.total > self.half_slo_ms + _WITHIN_MS
            or latency.gpu + latency.feedback > self.longest_ms + _WITHIN_MS
        )


def plan_igniter(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    current: Sequence[PlacedReplica],
    params: PlanParams,
) -> Placement:
    """Reads of the params: `has_shares`."""
    validate(workloads, accelerators, profiles, of_one_kind(_missing))
    coefficients = kind_coefficients(profiles, accelerators[0].kind)
    assert coefficients is not None
    names = sorted(each.name for each in accelerators)
    hardware = coefficients.hardware
    demands, whole, reasons = [], [], {}
    for each in sorted(workloads, key=lambda workload: workload.model):
        model = coefficients.models[each.model]
        alone, rest_rps = _whole_gpus(each, model, hardware)
        whole += alone
        if rest_rps <= 0:
            continue
        demand = _demand(each, rest_rps, model, hardware)
        if demand is not None:
            demands.append(demand)
        else:
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


def _missing(workloads: Sequence[Workload], kinds: Sequence[str], profiles: Profiles) -> list[str]:
    known = {kind: kind_coefficients(profiles, kind) for kind in kinds}
    return [
        f"model {workload.model}: has no iGniter coefficients on {kind}"
        for workload in workloads
        for kind, found in known.items()
        if found is None or workload.model not in found.models
    ]


def _whole_gpus(
    workload: Workload, model: ModelCoefficients, hardware: HardwareCoefficients
) -> tuple[list[_Demand], float]:
    """Whole GPUs for a model whose lower bound is above 100 %, and the rate that is left."""
    rate_rps = workload.rate_rps
    if rate_rps <= 0:
        return [], 0.0
    wanted = _wanted(workload, rate_rps, model, hardware)
    size = _largest_in_time(workload, model, hardware)
    if wanted.share_pct <= WHOLE_PCT or size == 0:
        return [], rate_rps
    resident = Resident(model, size, WHOLE_PCT)
    [latency] = predict([resident], hardware)
    per_s = _WHOLE_GPU_LOAD * 1000 * size / (latency.gpu + latency.feedback)
    count = floor(rate_rps / per_s)
    whole = [_Demand(workload.model, resident, _half_ms(workload))] * count
    return whole, rate_rps - count * per_s


def _demand(
    workload: Workload, rate_rps: float, model: ModelCoefficients, hardware: HardwareCoefficients
) -> _Demand | None:
    """The batch and lower bound of step 8; None: no share of any batch suffices.

    Where that batch needs over 100 %, the largest that a whole GPU computes in time.
    """
    resident = _wanted(workload, rate_rps, model, hardware)
    if resident.share_pct > WHOLE_PCT:
        size = _largest_in_time(workload, model, hardware)
        if size == 0:
            return None
        resident = _resident(workload, rate_rps, size, model, hardware)
    longest_ms = longest_batch_ms(resident.batch_size, rate_rps)
    return _Demand(workload.model, resident, _half_ms(workload), longest_ms)


def _wanted(
    workload: Workload, rate_rps: float, model: ModelCoefficients, hardware: HardwareCoefficients
) -> Resident:
    """The batch of step 8, at most the workload's largest."""
    size = batch_size(model, hardware, half_slo_ms=_half_ms(workload), rate_rps=rate_rps)
    size = min(size, workload.max_batch_size or size)
    return _resident(workload, rate_rps, size, model, hardware)


def _resident(
    workload: Workload,
    rate_rps: float,
    size: int,
    model: ModelCoefficients,
    hardware: HardwareCoefficients,
) -> Resident:
    half_ms = _half_ms(workload)
    share = lower_bound_pct(model, hardware, size, half_slo_ms=half_ms, rate_rps=rate_rps)
    return Resident(model, size, share)


def _largest_in_time(
    workload: Workload, model: ModelCoefficients, hardware: HardwareCoefficients
) -> int:
    """The largest batch that a whole GPU computes within half the SLO; 0: none."""
    for size in range(min(_MAX_BATCH, workload.max_batch_size or _MAX_BATCH), 0, -1):
        [latency] = predict([Resident(model, size, WHOLE_PCT)], hardware)
        if latency.total < _half_ms(workload):
            return size
    return 0


def _half_ms(workload: Workload) -> float:
    return workload.slo_s * 1000 / 2


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
            gpus.append(raise_shares([demand], hardware) or [_at_share(demand, WHOLE_PCT)])
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
        late = [demand.is_late(latency) for demand, latency in zip(raised, latencies, strict=True)]
        if not any(late):
            return raised
        raised = [
            _at_share(each, each.resident.share_pct + hardware.share_step_pct) if is_late else each
            for each, is_late in zip(raised, late, strict=True)
        ]
    return None


def _at_share(demand: _Demand, share_pct: float) -> _Demand:
    return replace(demand, resident=replace(demand.resident, share_pct=share_pct))


def _total_share(demands: Sequence[_Demand]) -> float:
    return sum(each.resident.share_pct for each in demands)
