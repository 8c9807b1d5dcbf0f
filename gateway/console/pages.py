"""Routes of the console. Names from outside are escaped by the templates, or set as text.

The application has put the viewer into the scope: a namespace, or None for operators.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.exceptions import HTTPException

from gateway.console.api_page import operation_groups
from gateway.console.autoscaler_plan import TITLE as PLAN
from gateway.console.job_pages import JobSources, job_routes
from gateway.console.model_page import model_document
from gateway.console.overview import MAX_ROWS, RowWindow
from gateway.console.page_files import HEADERS, PREFIX, Pages, viewer_of
from gateway.console.request_list import RequestFilter, is_visible, request_row, request_rows
from gateway.console.what_if import LOADING
from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from registry.redis.autoscaler_log import AutoscalerLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.console.command_runs import CommandRuns
    from gateway.console.deadlines import MissedDeadlines
    from gateway.console.live_updates import LiveUpdates
    from gateway.console.overview import Overview
    from gateway.telemetry.explanations import Explanations
    from gateway.telemetry.metrics import GatewayMetrics
    from gateway.telemetry.recent_requests import RecentRequests
    from registry.domain.action_log import ActionRecord, AutoscalerRecords
    from registry.domain.model import ModelRecord
    from registry.redis.watch import ClusterWatch

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
    commands: CommandRuns
    deadlines: MissedDeadlines

    @property
    def gateway(self) -> str:
        """Its name."""
        return self.explanations[0].gateway


def find_explanation(
    explanations: Sequence[Explanations], request_id: str, viewer: str | None
) -> dict[str, Any]:
    """With empty parts where there is none that the viewer may see.

    Clients choose ids: another tenant's request may have the same one.
    """
    for each in explanations:
        found = each.get(request_id)
        if found is not None and _is_visible_to(viewer, found):
            return {**_NO_EXPLANATION, **found}
    return dict(_NO_EXPLANATION)


def _is_visible_to(viewer: str | None, explanation: Mapping[str, Any]) -> bool:
    names = (explanation.get("model"), explanation.get("selection", {}).get("application"))
    return viewer is None or all(name is None or name.startswith(f"{viewer}/") for name in names)


def console_routes(sources: ConsoleSources) -> APIRouter:
    router = APIRouter(prefix=PREFIX, include_in_schema=False)
    pages = Pages(sources.gateway)
    _add_overview(router, pages, sources)
    _add_model(router, pages, sources)
    _add_requests(router, pages, sources)
    _add_autoscaler(router, pages, sources)
    _add_runs(router)
    jobs = JobSources(sources.watch, sources.recent, sources.commands)
    router.include_router(job_routes(pages.render, jobs))

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

    return router


def docs_route() -> APIRouter:
    """`/docs`, where servers of FastAPI have the description of their interface."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        return RedirectResponse(f"{PREFIX}/api")

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
        actions = [] if records is None else _actions(records.history, full_name)
        return pages.render(
            request, "model",
            model=model_document(sources.watch.state, sources.metrics, record),
            actions=actions, read_at_s=0.0 if records is None else records.read_at_s,
            rows=request_rows(
                sources.recent, sources.deadlines, viewer_of(request),
                RequestFilter(only_model=full_name), limit=20,
            ),
        )  # fmt: skip


def _add_requests(router: APIRouter, pages: Pages, sources: ConsoleSources) -> None:
    @router.get("/requests")
    async def requests(request: Request) -> Response:
        wanted = _request_filter(request)
        rows = request_rows(sources.recent, sources.deadlines, viewer_of(request), wanted)
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
        return pages.render(
            request, "request", row=request_row(found),
            explanation=find_explanation(sources.explanations, request_id, viewer_of(request)),
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
            job=sources.commands.latest(PLAN), loading=LOADING[:-1], now_s=time.time(),
            may_run=viewer is None and sources.commands.is_enabled,
        )  # fmt: skip


def _add_runs(router: APIRouter) -> None:
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


def _actions(history: tuple[ActionRecord, ...], subject: str) -> list[ActionRecord]:
    return [each for each in history if each.subject == subject]


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
