"""What the console's pages show: one model, the recent requests and one of them, the interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import yaml

from gateway.console.last_minute import LastMinute
from gateway.console.overview import cell_text, nearby, traffic_text
from gateway.selection.select_version import can_be_served
from gateway.telemetry.histograms import STAGES
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
from registry.domain.canaries import Canaries
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelRecord, ModelSpec, Tier
from registry.inference_service.predictors import needs_in_pool

_TIERS: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)
MAX_SHOWN: Final = 200


def model_document(
    state: ClusterState, metrics: GatewayMetrics, record: ModelRecord
) -> dict[str, Any]:
    """State on each pod, measurements, profile and YAML of a model; times in seconds."""
    spec = record.serving
    return {
        "name": str(spec.name),
        "namespace": spec.name.namespace,
        "short_name": spec.name.name,
        "ready": can_be_served(record, state),
        "needs": needs_in_pool(record.spec, has_server=state.has_server),
        "failure": None if record.failure is None else asdict(record.failure),
        "traffic": traffic_text(Canaries(state), record.spec),
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


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Empty fields do not filter."""

    model: str = ""
    """Part of `namespace/name`."""
    only_model: str = ""
    """The whole of it."""
    start: str = ""
    reason: str = ""
    slower_than_ms: float = 0.0
    failed: bool = False
    tenant: str = ""
    """The whole namespace."""
    missed: bool = False
    """After the model's deadline."""

    def matches(self, request: RecentRequest, last_minute: LastMinute) -> bool:
        return (
            self.model in request.model
            and self.only_model in ("", request.model)
            and self.start in ("", request.start)
            and self.reason in ("", request.reason)
            and request.took_s * 1000 >= self.slower_than_ms
            and (not self.failed or request.status >= 400)
            and self.tenant in ("", request.model.partition("/")[0])
            and (not self.missed or last_minute.is_missed(request))
        )


def is_visible(request: RecentRequest, viewer: str | None) -> bool:
    return viewer is None or request.model.startswith(f"{viewer}/")


def request_rows(
    recent: RecentRequests,
    last_minute: LastMinute,
    viewer: str | None,
    wanted: RequestFilter,
    limit: int = MAX_SHOWN,
) -> list[dict[str, Any]]:
    """The newest ones that the viewer may see."""
    rows: list[dict[str, Any]] = []
    for request in recent.newest_first():
        if is_visible(request, viewer) and wanted.matches(request, last_minute):
            rows.append(request_row(request))
            if len(rows) >= limit:
                break
    return rows


def request_row(request: RecentRequest) -> dict[str, Any]:
    """Values for the templates; `parts` is the timeline of its stages."""
    timings = request.timings
    row: dict[str, Any] = {
        **request._asdict(), "took_s": request.took_s or None, "pod_s": None, "parts": [],
        "failure": request.failure_text(),
    }  # fmt: skip
    if timings is not None:
        row["pod_s"] = timings.pod_ms / 1000
        row["parts"] = stage_bar([(str(name), ms / 1000) for name, ms in request.stages_ms()])
    return row


def operation_groups(document: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Operations of the OpenAPI document by tag, each in its order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(path, method, operation))
    return list(groups.items())


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": [
            {
                "name": each["name"], "in": each["in"], "required": each.get("required", False),
                "description": each.get("description", ""),
            }
            for each in operation.get("parameters", ())
        ],
        "responses": [
            (status, each["description"]) for status, each in operation["responses"].items()
        ],
    }  # fmt: skip
