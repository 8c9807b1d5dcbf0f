"""Measured latencies of placed models over those that the plan predicts. Pure."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.prediction import Predictor
from autoscaler.placement.planners.problem import PlanParams
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from autoscaler.tick.placement_input import PlacementInput
    from registry.domain.cluster import ClusterState
    from registry.domain.placement import PlacementRecord

_MAX_AGE_S: Final = 15.0
"""Older measurements say nothing about the latency now."""


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
