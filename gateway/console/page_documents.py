"""What the console's pages show: one model, the recent requests and one of them, the interface."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import yaml

from gateway.console.traffic import LastMinute
from gateway.management.state_documents import model_document, places, traffic_text
from gateway.routing.select_version import can_be_served
from gateway.telemetry.histograms import STAGES
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
from registry.domain.canaries import Canaries
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelRecord, ModelSpec, Tier

_TIERS: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)
MAX_SHOWN: Final = 200


def model_values(
    state: ClusterState, metrics: GatewayMetrics, record: ModelRecord
) -> dict[str, Any]:
    """What the page of a model shows of its state, measurements and declaration."""
    spec, name = record.serving, str(record.spec.name)
    starts, series = metrics.outcomes.starts(name), metrics.models.series.get(name)
    measured, count = state.measured(spec.key), 0 if series is None else sum(series.counts)
    canaries, holders = Canaries(state), state.holders(spec.key)
    document = model_document(state, record, canaries)
    return {
        "name": name,
        "record": record,
        "ready": can_be_served(record, state),
        "needs": document["needs"],
        "traffic": traffic_text(document["traffic"])
        if canaries.traffic(record.spec).is_split
        else "",
        "policy": asdict(spec.policy),
        "places": [
            (pod, where, holders[pod].size_bytes) for pod, where in sorted(places(holders).items())
        ],
        "loads": [(tier, measured.load_from(tier, None)) for tier in _TIERS],
        "starts": [(each, starts[each]) for each in ("warm", *_TIERS) if each in starts],
        "stages_ms": []
        if series is None or not count
        else [(name, ms / count) for name, ms in zip(STAGES, series.stages_ms, strict=True)],
        "profiles": state.profiles_of(spec.key),
        "yaml": _yaml(record.spec),
    }


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
    recent: RecentRequests, last_minute: LastMinute, viewer: str | None, wanted: RequestFilter
) -> list[RecentRequest]:
    """The newest ones that the viewer may see."""
    found = (
        each
        for each in recent.newest_first()
        if is_visible(each, viewer) and wanted.matches(each, last_minute)
    )
    return list(islice(found, MAX_SHOWN))


def operation_groups(document: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Any]]]:
    """Method, path and operation of the OpenAPI document by tag, each in its order."""
    groups: dict[str, list[tuple[str, str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append((method.upper(), path, operation))
    return groups
