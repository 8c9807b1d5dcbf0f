"""Why each model is where a plan puts it, in sentences; and two measures, the same for every plan.

Profiled goodput counts what the batches can compute one after the other; predicted in time counts
the requests that are answered within the SLO, with waiting, batch building and neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.placement.planners.catalogue import planner_of
from autoscaler.placement.planners.plan import ModelGoodput, Placement
from autoscaler.placement.planners.prediction import Predictor, batch_times
from autoscaler.placement.planners.problem import AcceleratorView, PlanParams, Profiles, Workload
from registry.domain.records import PlacedReplica


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
        share = "" if each.share_pct is None else f", share {each.share_pct:.3g} %"
        parts.append(f"batch {each.batch_size}{alone} on {each.accelerator}{share}")
    short = f"; short: {found.reason}" if found.reason else ""
    note = f"; {found.note}" if found.note else ""
    return (
        f"{found.model}: {found.goodput_rps:.2f} of {found.rate_rps:g} req/s within "
        f"{workload.slo_s * 1000:g} ms: {'; '.join(parts)}{short}{note}"
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
    metric = planner_of(planner).metric
    if metric is None:
        return f"{name}: shared by {models}: memory {memory:.1f} %"
    compute = sum(each.compute_pct(metric) for each in measured)
    return (
        f"{name}: shared by {models}: compute ({metric}) {compute:.1f} %, memory {memory:.1f} %, "
        "of 100 % each"
    )


@dataclass(frozen=True, slots=True)
class Measures:
    """Requests per second over all models."""

    profiled_rps: float
    """Sum of min(rate, throughputs of the replicas' batches): Elvinger 2024, section 5.4.1."""
    in_time_rps: float


def measure(
    placement: Placement,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    params: PlanParams,
) -> Measures | None:
    """None where a replica's batches were not measured on its accelerator."""
    kinds = {each.name: each.kind for each in accelerators}
    replicas = placement.replicas
    if not all(profiles.points(each.model, kinds[each.accelerator]) for each in replicas):
        return None
    capacities = {each: _throughput(each, kinds[each.accelerator], profiles) for each in replicas}
    profiled = sum(
        min(each.rate_rps, sum(capacities[replica] for replica in placement.of(each.model)))
        for each in workloads
    )
    in_time = Predictor(workloads, kinds, profiles, params).predict(replicas).in_time
    return Measures(profiled, sum(each.rate_rps * in_time[each.model] for each in workloads))


def _throughput(replica: PlacedReplica, kind: str, profiles: Profiles) -> float:
    """As profiled; between measured batches by their times."""
    point = profiles.point(replica.model, kind, replica.batch_size)
    if point is not None:
        return point.throughput_rps
    points = profiles.points(replica.model, kind)
    times = batch_times(replica.model, points, replica.batch_size, None)
    return replica.batch_size / times.seconds_of(replica.batch_size)
