"""What the console shows of one model: state on each pod, measurements, profile, actions, YAML."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import yaml

from gateway.console.overview import cell_text, nearby
from gateway.selection.select_version import can_be_served
from gateway.telemetry.model_metrics import STAGES
from registry.domain.model import Tier
from registry.inference_service.predictors import needs_in_pool

if TYPE_CHECKING:
    from gateway.telemetry.metrics import GatewayMetrics
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelRecord, ModelSpec

_TIERS: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)


def model_document(
    state: ClusterState, metrics: GatewayMetrics, record: ModelRecord
) -> dict[str, Any]:
    """Values for the template; times in seconds."""
    spec = record.serving
    return {
        "name": str(spec.name),
        "namespace": spec.name.namespace,
        "short_name": spec.name.name,
        "ready": can_be_served(record, state),
        "needs": needs_in_pool(record.spec, has_server=state.has_server),
        "failure": None if record.failure is None else asdict(record.failure),
        "is_updating": record.previous is not None,
        "policy": {
            key: str(value)
            for key, value in asdict(spec.policy).items()
            if value not in (None, "", (), False)
        },
        "pods": [
            {"pod": pod, "where": cell_text(residency), "bytes": residency.size_bytes}
            for pod, residency in sorted(nearby(state.holders(spec.key)).items())
        ],
        "loads": [
            {"tier": str(tier), "seconds": estimate.seconds, "measured": estimate.is_measured}
            for tier in _TIERS
            for estimate in (state.measured(spec.key).load_from(tier, None),)
        ],
        "starts": _starts(metrics, str(spec.name)),
        "deadline_s": spec.policy.deadline_s,
        "stages": _stages(metrics, str(spec.name)),
        "profiles": [
            {
                "product": profile.product or "CPU",
                "points": [
                    {
                        "rows": point.rows, "latency_s": point.latency_s,
                        "rate": point.rows_per_s, "memory_bytes": point.memory_bytes,
                    }
                    for point in profile.points
                ],
            }
            for profile in state.profiles_of(spec.key)
        ],
        "yaml": _yaml(record.spec),
    }  # fmt: skip


def _starts(metrics: GatewayMetrics, model: str) -> list[tuple[str, int]]:
    """Responses of this gateway by start: warm, then from the nearest tier."""
    found = metrics.outcomes.starts(model)
    return [(start, found[start]) for start in ("warm", *map(str, _TIERS)) if start in found]


def _stages(metrics: GatewayMetrics, model: str) -> list[dict[str, Any]]:
    """Mean time of each stage, and where its part of the bar begins and how long it is, in %."""
    series = metrics.models.series.get(model)
    count = 0 if series is None else sum(series.counts)
    if series is None or not count:
        return []
    means_s = [total_ms / 1000 / count for total_ms in series.stages_ms]
    return stage_bar(list(zip(map(str, STAGES), means_s, strict=True)))


def stage_bar(stages: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Parts of a stacked bar from names and seconds; parts of no length are left out."""
    total_s = sum(seconds for _, seconds in stages)
    parts, begin = [], 0.0
    for name, seconds in stages:
        if seconds > 0:
            width = 100 * seconds / total_s
            parts.append({"name": name, "seconds": seconds, "begin": begin, "width": width})
            begin += width
    return parts


def _yaml(spec: ModelSpec) -> str:
    """As `kubectl get -o yaml` would show the declaration, without status."""
    metadata: dict[str, Any] = {"name": spec.name.name, "namespace": spec.name.namespace}
    if spec.annotations:
        metadata["annotations"] = dict(spec.annotations)
    if spec.labels:
        metadata["labels"] = dict(spec.labels)
    model = {"modelFormat": {"name": spec.format}, "storageUri": spec.storage_uri}
    return yaml.safe_dump(
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": metadata,
            "spec": {"predictor": {"model": model}},
        },
        sort_keys=False,
    )
