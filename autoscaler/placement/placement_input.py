"""The input of planners from the registry's state, and the record of their plans. Pure.

A model is planned for if it has a deadline, which is its SLO, and a profile on the accelerators.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import median
from types import MappingProxyType
from typing import Final

from autoscaler.forecasting.forecasts import Demand
from autoscaler.placement.plan import Placement
from autoscaler.placement.prediction import Predictor, scaled, share_slowdown
from autoscaler.placement.problem import (
    WHOLE_PCT,
    AcceleratorView,
    ModelFits,
    ModelProfile,
    PlanParams,
    Profiles,
    Workload,
    model_profile,
    slowed_pairs,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, PlacementName, Tier
from registry.domain.records import PlacedReplica, PlacementRecord, PlannedModel

RECENT_S: Final = 15
_NORMAL_90: Final = 1.2816
"""0.9-quantile of the standard normal distribution."""
_WINDOW: Final = 1
"""Of a forecast's windows the one of 60 s."""
_QUANTILE: Final = 1
"""Of a forecast's quantiles 0.9."""


@dataclass(frozen=True, slots=True)
class PlacementInput:
    """What one plan is made from."""

    workloads: tuple[Workload, ...]
    accelerators: tuple[AcceleratorView, ...]
    profiles: Profiles
    overhead_s: Mapping[str, float] = field(default_factory=dict)
    """Preprocessing, postprocessing and network by model."""
    load_s: Mapping[str, float] = field(default_factory=dict)
    """Of a load from disk, by model."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Models that are not planned for, and why."""

    @property
    def kinds(self) -> dict[str, str]:
        """Of the accelerators, by name."""
        return {each.name: each.kind for each in self.accelerators}

    def known(self, replicas: Iterable[PlacedReplica]) -> list[PlacedReplica]:
        """Those with a workload, an accelerator and a profile of their batch."""
        kinds, models = self.kinds, {each.model for each in self.workloads}
        return [
            each
            for each in replicas
            if each.model in models
            and each.accelerator in kinds
            and self.profiles.point(each.model, kinds[each.accelerator], each.batch_size)
        ]


def placement_input(
    state: ClusterState,
    rates_rps: Mapping[str, float],
    cores: Sequence[str],
    latency_scales: Mapping[str, float] = MappingProxyType({}),
) -> PlacementInput:
    """The input at these rates, with profiles that are slower by `latency_scales`, by model.

    `cores`: names of the CPU's accelerators on this machine, which pods do not report.
    """
    accelerators = find_accelerators(state, cores)
    kinds = sorted({each.kind for each in accelerators})
    memory_bytes, shares = _memory_bytes(state, len(cores)), _client_shares(state)
    workloads: list[Workload] = []
    models: list[ModelProfile] = []
    overhead_s, load_s, left_out = {}, {}, {}
    for name, record in sorted(state.models.items()):
        spec, model = record.serving, str(name)
        if spec.is_stopped:
            continue
        profiles = [
            within_client(each, shares[each.kind]) if each.kind in shares else each
            for each in _profiles(state, spec, model, kinds, memory_bytes)
        ]
        if reason := _why_not(spec, kinds, profiles):
            left_out[model] = reason
            continue
        models += [scaled(each, latency_scales.get(model, 1.0)) for each in profiles]
        measured = state.measured(spec.key)
        overhead_s[model] = measured.stages.preprocess_s + measured.stages.postprocess_s
        load_s[model] = measured.load_from(Tier.DISK, None).seconds
        deadline_s = spec.policy.deadline_s or 0.0
        workloads.append(
            Workload(model, rates_rps.get(model, 0.0), deadline_s, spec.policy.max_batch_size)
        )
    names = [each.model for each in workloads]
    pairs = slowed_pairs(
        (name, each.neighbour, each.factor)
        for name in names
        for profile in state.profiles_of(state.models[ModelName.parse(name)].serving.key)
        for each in (profile.pairs if profile.product in kinds else ())
    )
    fits = tuple(
        ModelFits(name, profile.product, profile.fits, latency_scales.get(name, 1.0))
        for name in names
        for profile in state.profiles_of(
            _profile_key(state, state.models[ModelName.parse(name)].serving)
        )
        if profile.fits and profile.product in kinds
    )
    return PlacementInput(
        tuple(workloads),
        accelerators,
        Profiles(tuple(models), pairs, fits),
        overhead_s,
        load_s,
        left_out,
    )


def find_accelerators(state: ClusterState, cores: Sequence[str]) -> tuple[AcceleratorView, ...]:
    """GPUs that pods report, by UUID, and accelerators whose places CPU pods take.

    With `cores`: these groups of cores for all other CPU pods.
    """
    named, products = {}, set()
    for pod in state.pods.values():
        found = pod.info.accelerator
        if name := found.uuid or pod.info.takes_places:
            named[name] = found.product
        else:
            products.add(found.product)
    groups = [AcceleratorView(name, min(products)) for name in cores] if products else []
    return (*(AcceleratorView(*each) for each in sorted(named.items())), *groups)


def within_client(profile: ModelProfile, share: float) -> ModelProfile:
    """The profile of a model that has at most this share of the accelerator, on a pod of its own.

    Whatever the model needs, its pod takes up that share of the memory, so that no plan has more
    replicas on an accelerator than pods; batches that need more memory are left out.
    """
    limit_pct = WHOLE_PCT * share
    points = [
        replace(
            point,
            latency_s=point.latency_s * factor,
            throughput_rps=point.throughput_rps / factor,
            memory_pct=limit_pct,
            occupancy_pct=min(limit_pct, point.occupancy_pct),
            mean_occupancy_pct=min(limit_pct, point.mean_occupancy_pct),
            sm_utilization_pct=min(limit_pct, point.sm_utilization_pct),
            share_factors=_within(point.share_factors, limit_pct, factor),
        )
        for point in profile.points
        if point.memory_pct <= limit_pct
        for factor in [share_slowdown(point, limit_pct)]
    ]
    return replace(profile, points=tuple(points))


def _within(
    factors: tuple[tuple[float, float], ...], limit_pct: float, at_limit: float
) -> tuple[tuple[float, float], ...]:
    """Slowdowns by shares below the limit, over that at the limit."""
    below = tuple((share, each / at_limit) for share, each in factors if share < limit_pct)
    return (*below, (limit_pct, 1.0)) if below else ()


def expected_rates(
    demand: Demand | None, models: Iterable[str], recent_rps: Mapping[str, float]
) -> dict[str, float]:
    """Requests per second by model: the 0.9-quantile of the forecast of the next minute.

    At least that of Poisson arrivals at the rate of the last `RECENT_S`: forecasts of a minute
    notice a rate that doubles a minute later.
    """
    if demand is None:
        return {}
    window_s = demand.horizon.windows_s[_WINDOW]
    quantiles = demand.forecast.quantiles[:, _WINDOW, _QUANTILE]
    found = {}
    for model, value in zip(models, quantiles, strict=True):
        rate = recent_rps.get(model, 0.0)
        upper = rate + _NORMAL_90 * sqrt(rate / RECENT_S)
        found[model] = max(float(value) / window_s, upper)
    return found


def _why_not(spec: ModelSpec, kinds: Sequence[str], profiles: Sequence[ModelProfile]) -> str:
    if spec.policy.placement == PlacementName.OFF:
        return "annotation placement is off"
    if spec.policy.deadline_s is None:
        return "it has no deadline: annotation pilotlight.io/deadline"
    missing = set(kinds) - {each.kind for each in profiles}
    if missing or not kinds:
        where = ", ".join(sorted(missing)) or "any accelerator"
        return f"it has no profile on {where}: `pilotlight profile {spec.name}` measures one"
    too_large = sorted(each.kind for each in profiles if not each.points)
    if too_large:
        return f"no batch fits into a pod's part of the memory of {', '.join(too_large)}"
    return ""


def _memory_bytes(state: ClusterState, groups: int) -> dict[str, int]:
    """Of one accelerator, by product; groups of cores share the machine's equally."""
    found = (pod.info.accelerator for pod in state.pods.values())
    return {
        each.product: each.memory_bytes if each.uuid else each.memory_bytes // max(1, groups)
        for each in found
    }


def _client_shares(state: ClusterState) -> dict[str, float]:
    """Of the pods that take places, by product: the part of an accelerator that one can have."""
    found: dict[str, float] = {}
    for pod in state.pods.values():
        if pod.info.takes_places:
            product = pod.info.accelerator.product
            found[product] = min(found.get(product, 1.0), pod.info.max_share)
    return found


def _profile_key(state: ClusterState, spec: ModelSpec) -> str:
    """Of the model, or of the one that its annotation `profile` names."""
    if spec.policy.profile is None:
        return spec.key
    other = state.models.get(ModelName(spec.name.namespace, spec.policy.profile))
    return other.serving.key if other is not None else ""


def _profiles(
    state: ClusterState,
    spec: ModelSpec,
    model: str,
    kinds: Sequence[str],
    memory_bytes: Mapping[str, int],
) -> list[ModelProfile]:
    """By kind."""
    key = _profile_key(state, spec)
    weights = state.residency.device_bytes.get(key, 0)
    return [
        model_profile(model, each, weights_bytes=weights, memory_bytes=memory_bytes[each.product])
        for each in state.profiles_of(key)
        if each.product in kinds and each.points
    ]


_MAX_AGE_S: Final = 15.0
"""Older measurements say nothing about the latency now."""


def new_record(
    before: PlacementRecord | None,
    placement: Placement,
    inputs: PlacementInput,
    reason: str,
    now_s: float,
    latency_scales: Mapping[str, float] = MappingProxyType({}),
) -> PlacementRecord:
    """The plan as the new target; the pods that run are those of `before`."""
    slos_s = {each.model: each.slo_s for each in inputs.workloads}
    models = [
        PlannedModel(each.model, each.rate_rps, slos_s[each.model], each.goodput_rps, each.reason)
        for each in placement.models
    ]
    models += [PlannedModel(model, 0.0, 0.0, 0.0, why) for model, why in inputs.left_out.items()]
    models = _scaled(models, latency_scales)
    return PlacementRecord(
        planner=placement.planner,
        reason=reason,
        planned_at_s=now_s,
        accelerators=tuple(each.name for each in inputs.accelerators),
        models=tuple(models),
        target=placement.replicas,
        pods=before.pods if before else (),
        next_number=before.next_number if before else 0,
    )


def with_scales(record: PlacementRecord, latency_scales: Mapping[str, float]) -> PlacementRecord:
    """The record of a plan that is kept although latencies differ from what it was made for."""
    return replace(record, models=tuple(_scaled(record.models, latency_scales)))


def _scaled(
    models: Iterable[PlannedModel], latency_scales: Mapping[str, float]
) -> list[PlannedModel]:
    return [replace(each, latency_scale=latency_scales.get(each.model, 1.0)) for each in models]


def empty_record(before: PlacementRecord, now_s: float) -> PlacementRecord:
    """Nothing is placed any more."""
    off = replace(before, planner="off", reason="placement is off", planned_at_s=now_s)
    return replace(off, models=(), target=(), pods=())


def moving_cost(
    record: PlacementRecord | None, placement: Placement, inputs: PlacementInput
) -> float:
    """Requests that arrive at an accelerator while a load on it slows its models down."""
    if record is None:
        return 0.0
    running = {
        (pod.replica.model, pod.replica.accelerator, pod.replica.share_pct): pod.replica
        for pod in record.pods
    }
    rates: dict[str, float] = {}
    for each in running.values():
        rates[each.accelerator] = rates.get(each.accelerator, 0.0) + each.rate_rps
    return sum(
        inputs.load_s[each.model] * rates.get(each.accelerator, 0.0)
        for each in placement.replicas
        if (each.model, each.accelerator, each.share_pct) not in running
    )


def latency_ratios(
    state: ClusterState, record: PlacementRecord, inputs: PlacementInput, now_s: float
) -> dict[str, float]:
    """By model: the median of the latest inferences' times on its placed pods over the predicted.

    The predicted time is that of the usual batch at the rates of `inputs`, beside the neighbours.
    `now_s`: of the registry. Models without fresh measurements are left out.
    """
    replicas = inputs.known(pod.replica for pod in record.pods)
    predictor = Predictor(inputs.workloads, inputs.kinds, inputs.profiles, PlanParams())
    predicted: defaultdict[str, list[float]] = defaultdict(list)
    for replica, service_s in zip(replicas, predictor.service_s(replicas), strict=True):
        predicted[replica.model].append(service_s)
    measured = _measured_s(state, now_s)
    return {
        model: measured[model] / median(services_s)
        for model, services_s in predicted.items()
        if model in measured
    }


def _measured_s(state: ClusterState, now_s: float) -> dict[str, float]:
    """By placed model: the median of its placed pods' times."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for pod in state.pods.values():
        record = state.models.get(ModelName.parse(pod.placed_model)) if pod.placed_model else None
        if record is None:
            continue
        key = record.serving.key
        infer, sampled_s = pod.estimates[key].infer, pod.estimates.table[key].sampled_s
        if infer.is_measured and now_s - sampled_s <= _MAX_AGE_S:
            found[pod.placed_model].append(infer.seconds)
    return {model: median(times_s) for model, times_s in found.items()}
