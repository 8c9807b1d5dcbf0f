"""Routes of the console. Names from outside are escaped by the templates, or set as text.

The application has put the viewer into the scope: a namespace, or None for operators.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.exceptions import HTTPException

from gateway.console.last_minute import LastMinute, replayed, trace_of
from gateway.console.live_updates import LiveUpdates
from gateway.console.overview import MAX_ROWS, Overview, RowWindow
from gateway.console.page_documents import (
    RequestFilter,
    is_visible,
    model_values,
    operation_groups,
    request_rows,
)
from gateway.console.page_files import (
    HEADERS,
    PREFIX,
    Pages,
    routes_with_error_pages,
    viewer_of,
)
from gateway.telemetry.explanations import Explanations, find_explanation
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.recent_requests import RecentRequests
from registry.domain.action_log import ActionRecord, AutoscalerRecords
from registry.domain.model import ModelName, ModelRecord
from registry.errors import RegistryUnavailable
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.watch import ClusterWatch
from registry.redis.workflow_log import WorkflowLog

_NO_EXPLANATION: Final[Mapping[str, Any]] = {
    "summary": "", "decision": {}, "waited_for": [], "options": [], "candidates": [],
}  # fmt: skip
"""Of a request that was refused before it was routed, or of an old one."""


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """What the pages read."""

    watch: ClusterWatch
    metrics: GatewayMetrics
    recent: RecentRequests
    explanations: Sequence[Explanations]
    """Of each pool of the gateway."""
    overview: Overview
    updates: LiveUpdates
    last_minute: LastMinute

    @property
    def gateway(self) -> str:
        """Its name."""
        return self.explanations[0].gateway


def console_routes(sources: ConsoleSources) -> APIRouter:
    pages = Pages(sources.gateway)
    router = APIRouter(
        prefix=PREFIX, include_in_schema=False, route_class=routes_with_error_pages(pages)
    )
    _add_overview(router, pages, sources)
    _add_model(router, pages, sources)
    _add_requests(router, pages, sources)
    _add_autoscaler(router, pages, sources)
    _add_workflows(router, pages, sources)

    @router.get("/api")
    async def interface(request: Request) -> Response:
        document = request.app.openapi()
        return pages.render(
            request, "api",
            description=document["info"]["description"], groups=operation_groups(document),
        )  # fmt: skip

    @router.get("/assets/{name}")
    async def asset(name: str) -> Response:
        found = pages.asset(name)
        if found is None:
            raise HTTPException(404, f"no such file: {name}")
        headers = {**HEADERS, "cache-control": "max-age=600"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    @router.get("/{path:path}")
    async def unknown(path: str) -> Response:
        raise HTTPException(404, f"the console has no page {path!r}")

    return router


def routes_beside_the_console(sources: ConsoleSources) -> APIRouter:
    """The trace, and `/docs`, where servers of FastAPI have the description of their interface."""
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return RedirectResponse(f"{PREFIX}/api")

    @router.get("/pilotlight/v1/trace", tags=["operation"])
    async def trace() -> Response:
        """Arrivals of the last ten minutes' requests as CSV, for `pilotlight simulate`."""
        requests = replayed(sources.recent, sources.watch.state, time.time())
        return Response(trace_of(requests), media_type="text/csv")

    return router


def _add_overview(router: APIRouter, pages: Pages, sources: ConsoleSources) -> None:
    @router.get("")
    @router.get("/")
    async def overview(request: Request) -> Response:
        window = _window(request)
        return pages.render(
            request, "overview", window=window,
            document=sources.overview.document(viewer_of(request), window),
        )  # fmt: skip

    @router.get("/events")
    async def events(request: Request) -> Response:
        """The overview as server-sent events; with `model`, the points of its chart."""
        viewer, model = viewer_of(request), request.query_params.get("model")
        if sources.updates.is_full(viewer):
            raise HTTPException(503, "too many browsers watch this gateway")
        if model is None:
            content = sources.updates.overview(viewer, _window(request))
        else:
            _record(request, sources, model)
            content = sources.updates.model(viewer, model)
        return StreamingResponse(content, media_type="text/event-stream", headers=HEADERS)


def _add_model(router: APIRouter, pages: Pages, sources: ConsoleSources) -> None:
    @router.get("/models/{namespace}/{name}")
    async def model(request: Request, namespace: str, name: str) -> Response:
        record = _record(request, sources, f"{namespace}/{name}")
        full_name = str(record.spec.name)
        records = await _records(sources)
        actions = [each for each in records.history if each.subject == full_name] if records else []
        return pages.render(
            request, "model",
            **model_values(sources.watch.state, sources.metrics, record),
            actions=actions, read_at_s=0.0 if records is None else records.read_at_s,
            rows=request_rows(
                sources.recent, sources.last_minute, viewer_of(request),
                RequestFilter(only_model=full_name), limit=20,
            ),
        )  # fmt: skip


def _add_requests(router: APIRouter, pages: Pages, sources: ConsoleSources) -> None:
    @router.get("/requests")
    async def requests(request: Request) -> Response:
        wanted = _request_filter(request)
        rows = request_rows(sources.recent, sources.last_minute, viewer_of(request), wanted)
        return pages.render(request, "requests", wanted=wanted, rows=rows)

    @router.get("/requests/{request_id:path}")
    async def one_request(request: Request, request_id: str) -> Response:
        found = sources.recent.find(request_id)
        if found is None or not is_visible(found, viewer_of(request)):
            raise HTTPException(
                404,
                f"request {request_id!r} is not among the last ones of this gateway,"
                f" {sources.gateway}",
            )
        viewer = viewer_of(request)
        decided = find_explanation(
            sources.explanations, request_id, None if viewer is None else (viewer,)
        )
        return pages.render(
            request, "request", row=found, explanation={**_NO_EXPLANATION, **decided},
        )  # fmt: skip


def _add_autoscaler(router: APIRouter, pages: Pages, sources: ConsoleSources) -> None:
    @router.get("/autoscaler")
    async def autoscaler(request: Request) -> Response:
        records, viewer = await _records(sources), viewer_of(request)

        def visible(actions: tuple[ActionRecord, ...]) -> list[ActionRecord]:
            own = [each for each in actions if each.subject.startswith(f"{viewer}/")]
            return list(actions) if viewer is None else own

        windows = {
            application: request_id
            for each in sources.explanations
            for application, request_id in each.latest_selections.items()
            if viewer is None or application.startswith(f"{viewer}/")
        }
        return pages.render(
            request, "autoscaler", records=records, windows=windows,
            placement=sources.watch.state.placement if viewer is None else None,
            registry_now_s=sources.watch.registry_now_s(),
            ongoing=[] if records is None else visible(records.ongoing.actions),
            history=[] if records is None else visible(records.history),
            pool=sources.watch.registry.pool,
        )  # fmt: skip


def _add_workflows(router: APIRouter, pages: Pages, sources: ConsoleSources) -> None:
    log = WorkflowLog(sources.watch.registry)

    @router.get("/workflows")
    async def workflows(request: Request) -> Response:
        viewer = viewer_of(request)
        try:
            runs, deployed = await log.latest_runs(), await log.workflows()
        except RegistryUnavailable:
            raise HTTPException(503, "Redis does not answer: runs cannot be read") from None
        return pages.render(
            request, "workflows", now_s=time.time(),
            runs=[each for each in runs if viewer in (None, each.workflow.namespace)],
            deployed=sorted(name for name in deployed if viewer in (None, name.namespace)),
        )  # fmt: skip

    @router.get("/runs")
    async def run(namespace: str, run: str) -> Response:
        """The workflow's run, which its scheduler describes; access is checked there."""
        path = f"/serving/{quote(namespace, safe='')}/all/v1/workflows/-/runs/{quote(run, safe='')}"
        return RedirectResponse(path)


def _record(request: Request, sources: ConsoleSources, name: str) -> ModelRecord:
    """Raises HTTPException; what others have is as unknown as what does not exist."""
    model, viewer = ModelName.parse(name), viewer_of(request)
    record = sources.watch.state.models.get(model)
    if record is None or viewer not in (None, model.namespace):
        raise HTTPException(404, f"model {name} does not exist")
    return record


async def _records(sources: ConsoleSources) -> AutoscalerRecords | None:
    """None while Redis is away."""
    try:
        return await AutoscalerLog(sources.watch.registry).records()
    except RegistryUnavailable:
        return None


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
