"""The record of a new plan: its replicas and models, beside the pods that run. Pure."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from registry.domain.placement import PlacementRecord, PlannedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.placement.planners.plan import Placement
    from autoscaler.tick.placement_input import PlacementInput


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
        before, planner="off", reason="placement is off", planned_at_s=now_s, models=(), target=(),
        pods=(),
    )  # fmt: skip


def moving_cost(
    record: PlacementRecord | None, placement: Placement, inputs: PlacementInput
) -> float:
    """Requests that arrive at an accelerator while a load on it slows its models down."""
    if record is None:
        return 0.0
    running = {(pod.replica.model, pod.replica.accelerator, pod.replica.share_pct): pod.replica
               for pod in record.pods}  # fmt: skip
    rates: dict[str, float] = {}
    for each in running.values():
        rates[each.accelerator] = rates.get(each.accelerator, 0.0) + each.rate_rps
    return sum(
        inputs.load_s[each.model] * rates.get(each.accelerator, 0.0)
        for each in placement.replicas
        if (each.model, each.accelerator, each.share_pct) not in running
    )
