"""Why each model is where a plan puts it, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.placement.planners.catalogue import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.placement.planners.plan import ModelGoodput, Placement
    from autoscaler.placement.planners.problem import AcceleratorView, Profiles, Workload
    from registry.domain.placement import PlacedReplica


def explain(
    placement: Placement,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
) -> list[str]:
    """A line per model, then a line per accelerator that is shared or idle."""
    kinds = {each.name: each.kind for each in accelerators}
    by_model = {each.model: each for each in workloads}
    lines = [
        _model_line(placement, each, by_model[each.model], kinds, profiles)
        for each in placement.models
    ]
    for name in sorted(kinds):
        here = [each for each in placement.replicas if each.accelerator == name]
        if not here:
            lines.append(f"{name}: idle")
        elif len(here) > 1:
            lines.append(_shared_line(placement.planner, name, here, kinds[name], profiles))
    return lines


def _model_line(
    placement: Placement,
    found: ModelGoodput,
    workload: Workload,
    kinds: dict[str, str],
    profiles: Profiles,
) -> str:
    replicas = placement.of(found.model)
    if not replicas:
        return f"{found.model}: not served: {found.reason}"
    parts = []
    for each in replicas:
        kind = kinds[each.accelerator]
        point = profiles.point(each.model, kind, each.batch_size)
        alone = f" ({point.latency_s * 1000:.1f} ms alone)" if point is not None else ""
        share = "" if each.share_pct is None else f", share {each.share_pct:g} %"
        parts.append(f"batch {each.batch_size}{alone} on {each.accelerator}{share}")
    short = f"; short: {found.reason}" if found.reason else ""
    return (
        f"{found.model}: {found.goodput_rps:.2f} of {found.rate_rps:g} req/s within "
        f"{workload.slo_s * 1000:g} ms: {'; '.join(parts)}{short}"
    )


def _shared_line(
    planner: str, name: str, here: Sequence[PlacedReplica], kind: str, profiles: Profiles
) -> str:
    models = " and ".join(each.model for each in here)
    points = [profiles.point(each.model, kind, each.batch_size) for each in here]
    measured = [each for each in points if each is not None]
    if len(measured) < len(points):
        return f"{name}: shared by {models}"
    memory = sum(each.memory_pct for each in measured)
    metric = METRICS.get(planner)
    if metric is None:
        return f"{name}: shared by {models}: memory {memory:.1f} %"
    compute = sum(each.compute_pct(metric) for each in measured)
    return (
        f"{name}: shared by {models}: compute ({metric}) {compute:.1f} %, memory {memory:.1f} %, "
        "of 100 % each"
    )
