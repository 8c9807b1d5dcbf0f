"""The record of a new plan beside the pods that run, and how far latencies are from it. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from types import MappingProxyType
from typing import Final

from autoscaler.placement.planners.plan import Placement
from autoscaler.placement.planners.prediction import Predictor
from autoscaler.placement.planners.problem import PlanParams
from autoscaler.tick.placement_input import PlacementInput
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.records import PlacementRecord, PlannedModel

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
    return replace(
        before,
        planner="off",
        reason="placement is off",
        planned_at_s=now_s,
        models=(),
        target=(),
        pods=(),
    )


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
    kinds = {each.name: each.kind for each in inputs.accelerators}
    known = {each.model for each in inputs.workloads}
    replicas = [
        pod.replica
        for pod in record.pods
        if pod.replica.model in known
        and pod.replica.accelerator in kinds
        and inputs.profiles.points(pod.replica.model, kinds[pod.replica.accelerator])
    ]
    predictor = Predictor(inputs.workloads, kinds, inputs.profiles, PlanParams())
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
        estimates = pod.estimates[record.serving.key]
        if estimates.infer.is_measured and now_s - estimates.sampled_s <= _MAX_AGE_S:
            found[pod.placed_model].append(estimates.infer.seconds)
    return {model: median(times_s) for model, times_s in found.items()}
