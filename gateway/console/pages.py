"""Routes of the console and what they show. Names are escaped by the templates, or set as text.

The application has put the viewer into the scope: a namespace, or None for operators.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import yaml
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.exceptions import HTTPException

from gateway.console import HEADERS, PREFIX, Pages, viewer_of
from gateway.console.overview import MAX_ROWS, LiveUpdates, Overview, RowWindow, present_level
from gateway.console.traffic import LastMinute, Traffic, replayed, trace_of
from gateway.management import model_document, places, traffic_text
from gateway.request_task import Shutdown
from gateway.routing.route_request import can_be_served
from gateway.telemetry.explanations import Explanations, find_explanation
from gateway.telemetry.metrics import STAGES, GatewayMetrics
from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
from registry.domain.canaries import Canaries
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.records import AutoscalerRecords
from registry.errors import RegistryUnavailable
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch
from registry.redis.workflow_log import WorkflowLog

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


_NO_EXPLANATION: Final[Mapping[str, Any]] = {
    "summary": "", "decision": {}, "waited_for": [], "options": [], "candidates": [],
}  # fmt: skip
"""Of a request that was refused before it was routed, or of an old one."""


@dataclass(eq=False)
class Console:
    watch: ClusterWatch
    metrics: GatewayMetrics
    recent: RecentRequests
    explanations: Sequence[Explanations]
    """Of each pool of the gateway; the others are of the first one."""
    queued_total: Callable[[], int]
    shutdown: Shutdown
    is_open: bool

    def __post_init__(self) -> None:
        registry = self.watch.registry
        self._pages = Pages(self.explanations[0].gateway, is_open=self.is_open)
        self._log, self._workflow_log = AutoscalerLog(registry), WorkflowLog(registry)
        self._last_minute = LastMinute(self.recent, self.watch.state)
        traffic = Traffic(self.metrics, partial(present_level, self.watch))
        self._overview = Overview(self.watch, traffic, self.queued_total, self._last_minute)
        self._updates = LiveUpdates(self._overview, self._log, self.shutdown)
        self.run = traffic.run

    def add_to(self, api: FastAPI) -> None:
        """The pages, the trace, and `/docs`, where servers of FastAPI describe their interface.

        Errors are pages for those who accept HTML, as browsers do for an address.
        """
        pages = APIRouter(prefix=PREFIX, include_in_schema=False)
        for path, page in (
            ("", self.overview),
            ("/", self.overview),
            ("/events", self.events),
            ("/models/{namespace}/{name}", self.model),
            ("/requests", self.requests),
            ("/requests/{request_id:path}", self.request),
            ("/autoscaler", self.autoscaler),
            ("/workflows", self.workflows),
            ("/runs", self.workflow_run),
            ("/api", self.interface),
            ("/assets/{name}", self.asset),
            ("/{path:path}", self.unknown),
        ):
            pages.add_api_route(path, page)
        api.include_router(pages)
        api.add_api_route("/docs", self.docs, include_in_schema=False)
        api.add_api_route("/pilotlight/v1/trace", self.trace, tags=["operation"])
        as_json: Any = api.exception_handlers[HTTPException]

        @api.exception_handler(HTTPException)
        def http_error(request: Request, error: HTTPException) -> Response:
            is_page = "pilotlight.viewer" in request.scope
            if not is_page or "text/html" not in request.headers.get("accept", ""):
                found: Response = as_json(request, error)
                return found
            status = error.status_code
            return self._pages.render(
                request, "error", status, error_status=status, message=error.detail
            )

    async def overview(self, request: Request) -> Response:
        window = _window(request)
        document = self._overview.document(viewer_of(request), window)
        return self._pages.render(request, "overview", window=window, document=document)

    async def events(self, request: Request) -> Response:
        """The overview as server-sent events; with `model`, the points of its chart."""
        viewer, model = viewer_of(request), request.query_params.get("model")
        if self._updates.is_full(viewer):
            raise HTTPException(503, "too many browsers watch this gateway")
        if model is None:
            content = self._updates.overview(viewer, _window(request))
        else:
            self._record(request, model)
            content = self._updates.model(viewer, model)
        return StreamingResponse(content, media_type="text/event-stream", headers=HEADERS)

    async def model(self, request: Request, namespace: str, name: str) -> Response:
        record = self._record(request, f"{namespace}/{name}")
        wanted = RequestFilter(only_model=str(record.spec.name))
        records = await self._records()
        history = () if records is None else records.history
        return self._pages.render(
            request,
            "model",
            **model_values(self.watch.state, self.metrics, record),
            actions=[each for each in history if each.subject == wanted.only_model],
            read_at_s=0.0 if records is None else records.read_at_s,
            rows=request_rows(self.recent, self._last_minute, viewer_of(request), wanted)[:20],
        )

    def _record(self, request: Request, name: str) -> ModelRecord:
        """Raises HTTPException; what others have is as unknown as what does not exist."""
        model, viewer = ModelName.parse(name), viewer_of(request)
        record = self.watch.state.models.get(model)
        if record is None or viewer not in (None, model.namespace):
            raise HTTPException(404, f"model {name} does not exist")
        return record

    async def _records(self) -> AutoscalerRecords | None:
        """None while Redis is away."""
        try:
            return await self._log.records()
        except RegistryUnavailable:
            return None

    async def requests(self, request: Request) -> Response:
        wanted = _request_filter(request)
        rows = request_rows(self.recent, self._last_minute, viewer_of(request), wanted)
        return self._pages.render(request, "requests", wanted=wanted, rows=rows)

    async def request(self, request: Request, request_id: str) -> Response:
        viewer = viewer_of(request)
        found = self.recent.find(request_id)
        if found is None or not is_visible(found, viewer):
            raise HTTPException(
                404,
                f"request {request_id!r} is not among the last ones of this gateway,"
                f" {self.explanations[0].gateway}",
            )
        decided = find_explanation(
            self.explanations, request_id, None if viewer is None else (viewer,)
        )
        return self._pages.render(
            request, "request", row=found, explanation={**_NO_EXPLANATION, **decided}
        )

    async def autoscaler(self, request: Request) -> Response:
        records, viewer = await self._records(), viewer_of(request)

        def is_own(name: str) -> bool:
            return viewer is None or name.startswith(f"{viewer}/")

        return self._pages.render(
            request,
            "autoscaler",
            records=records,
            windows={
                application: request_id
                for each in self.explanations
                for application, request_id in each.latest_selections.items()
                if is_own(application)
            },
            placement=self.watch.state.placement if viewer is None else None,
            registry_now_s=self.watch.registry_now_s(),
            ongoing=[each for each in records.ongoing.actions if is_own(each.subject)]
            if records
            else [],
            history=[each for each in records.history if is_own(each.subject)] if records else [],
            pool=self.watch.registry.pool,
        )

    async def workflows(self, request: Request) -> Response:
        viewer, log = viewer_of(request), self._workflow_log
        try:
            runs, deployed = await log.latest_runs(), await log.workflows()
        except RegistryUnavailable:
            raise HTTPException(503, "Redis does not answer: runs cannot be read") from None
        return self._pages.render(
            request,
            "workflows",
            now_s=time.time(),
            runs=[each for each in runs if viewer in (None, each.workflow.namespace)],
            deployed=sorted(name for name in deployed if viewer in (None, name.namespace)),
        )

    async def workflow_run(self, namespace: str, run: str) -> Response:
        """The workflow's run, which its scheduler describes; access is checked there."""
        path = f"/serving/{quote(namespace, safe='')}/all/v1/workflows/-/runs/{quote(run, safe='')}"
        return RedirectResponse(path)

    async def interface(self, request: Request) -> Response:
        document = request.app.openapi()
        return self._pages.render(
            request,
            "api",
            description=document["info"]["description"],
            groups=operation_groups(document),
        )

    async def asset(self, name: str) -> Response:
        if name not in self._pages.assets:
            raise HTTPException(404, f"no such file: {name}")
        content, media_type = self._pages.assets[name]
        headers = {**HEADERS, "cache-control": "max-age=600"}
        return Response(content, media_type=media_type, headers=headers)

    async def unknown(self, path: str) -> Response:
        raise HTTPException(404, f"the console has no page {path!r}")

    async def docs(self) -> Response:
        return RedirectResponse(f"{PREFIX}/api")

    async def trace(self) -> Response:
        """Arrivals of the last ten minutes' requests as CSV, for `pilotlight simulate`."""
        requests = replayed(self.recent, self.watch.state, time.time())
        return Response(trace_of(requests), media_type="text/csv")


def _window(request: Request) -> RowWindow:
    given = request.query_params
    return RowWindow(
        offset=_whole(given.get("offset"), default=0, limit=10**9),
        limit=max(_whole(given.get("limit"), default=30, limit=MAX_ROWS), 1),
        search=given.get("search", "").strip(),
        by_rate=given.get("sort") == "rate",
    )


def _request_filter(request: Request) -> RequestFilter:
    given = request.query_params
    return RequestFilter(
        model=given.get("model", "").strip(),
        start=given.get("start", ""),
        reason=given.get("reason", "").strip(),
        slower_than_ms=float(_whole(given.get("slower"), default=0, limit=10**9)),
        failed=given.get("failed") == "1",
        tenant=given.get("tenant", "").strip(),
        missed=given.get("missed") == "1",
    )


def _whole(text: str | None, *, default: int, limit: int) -> int:
    """A number from a query; what is none counts as the default."""
    if not text or not text.isdecimal() or len(text) > 12:
        return default
    return min(int(text), limit)
