"""The scheduler's HTTP interface, which gateways pass requests to, and checks of their bodies.

Gateways have authenticated the caller; `x-pilotlight-namespace` names the tenant.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import orjson
from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from common.http_server import unless_disconnected
from common.pod_secret import HEADER as SECRET_HEADER
from common.pod_secret import PodSecret
from common.probe_server import exposition
from common.shown_value import json_fault, kind_of
from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from workflows.deployments import not_deployed
from workflows.errors import WorkflowError
from workflows.metrics import SchedulerMetrics
from workflows.run import ANY_WORKFLOW, Run, RunStatus
from workflows.scheduler import Scheduler
from workflows.settings import parse_scheduling

NAMESPACE_HEADER: Final = "x-pilotlight-namespace"
MAX_BODY_BYTES: Final = 16 * 1024**2
_MAX_DEADLINE_MS: Final = 86_400_000
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def namespace_of(request: Request) -> str:
    return request.headers.get(NAMESPACE_HEADER, "default")


def workflow_of(request: Request, name: str) -> ModelName:
    if not _NAME.fullmatch(name):
        raise WorkflowError(
            f"a workflow's name has 1 to 63 small letters, digits and hyphens, was {name[:80]!r}"
        )
    return ModelName(namespace_of(request), name)


async def read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise WorkflowError(f"a body may have {MAX_BODY_BYTES} bytes", "body-too-large")
    return bytes(body)


async def read_text(request: Request, reason: str = "bad-request") -> str:
    try:
        return (await read_body(request)).decode()
    except UnicodeDecodeError as error:
        raise WorkflowError(
            f"the body must be UTF-8, but its byte {error.start} is not", reason
        ) from None


def arguments_of(body: bytes) -> dict[str, Any]:
    try:
        arguments = orjson.loads(body) if body else {}
    except ValueError as error:
        raise WorkflowError(
            f"the body must be a JSON object of arguments: {json_fault(error)}"
        ) from None
    if not isinstance(arguments, dict):
        raise WorkflowError(
            f"the body must be a JSON object of arguments, was {kind_of(arguments)}"
        )
    try:
        orjson.dumps([arguments])  # as a run's record holds them
    except TypeError as error:
        raise WorkflowError(f"the arguments are nested too deeply: {error}") from None
    return arguments


def deadline_of(request: Request) -> float | None:
    text = request.headers.get("x-pilotlight-deadline-ms")
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= _MAX_DEADLINE_MS:
        raise WorkflowError(
            "header x-pilotlight-deadline-ms must be a positive number of milliseconds up to "
            f"{_MAX_DEADLINE_MS}, was {text[:40]!r}"
        )
    return number / 1000


def scheduling_of(request: Request) -> str | None:
    text = request.headers.get("x-pilotlight-scheduling")
    if text is None:
        return None
    try:
        return parse_scheduling(text)
    except ValueError as error:
        raise WorkflowError(f"header x-pilotlight-scheduling {error}") from None


def idempotency_key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= 256:
        raise WorkflowError("header idempotency-key must have 1 to 256 characters")
    return key


def create_api(scheduler: Scheduler, secret: PodSecret, metrics: SchedulerMetrics) -> FastAPI:
    api = FastAPI(title="Pilotlight workflows", version="0.1.0")
    _add_health(api, scheduler, metrics)
    _add_workflows(api, scheduler)
    _add_runs(api, scheduler)

    api.add_middleware(SecretCheck, secret=secret)

    @api.exception_handler(WorkflowError)
    def workflow_error(_: Request, error: WorkflowError) -> JSONResponse:
        return _refusal(str(error), error.reason, error.status, error.line)

    @api.exception_handler(RegistryUnavailable)
    def registry_unavailable(_: Request, error: RegistryUnavailable) -> JSONResponse:
        return _refusal(str(error), "not-ready", 503)

    return api


class SecretCheck:
    """Refuses requests that carry no secret of the platform; plain ASGI, so that streams stay."""

    def __init__(self, app: Any, secret: PodSecret) -> None:
        self._app = app
        self._secret = secret

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            given = dict(scope["headers"]).get(SECRET_HEADER.encode())
            if not self._secret.accepts(given):
                refusal = JSONResponse({"error": "only gateways may send requests here"}, 403)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refusal(message: str, reason: str, status: int, line: int | None = None) -> JSONResponse:
    document: dict[str, Any] = {"error": message, "reason": reason}
    if line is not None:
        document["line"] = line
    shown = {"x-pilotlight-reason": reason}
    if status in (429, 503):
        shown["retry-after"] = "1"
    return JSONResponse(document, status, headers=shown)


def _add_health(api: FastAPI, scheduler: Scheduler, metrics: SchedulerMetrics) -> None:
    @api.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @api.get("/readyz")
    async def readyz() -> JSONResponse:
        """Runs are accepted."""
        return JSONResponse({"ready": scheduler.is_ready}, 200 if scheduler.is_ready else 503)

    @api.get("/metrics")
    async def prometheus_metrics(accept: Annotated[str, Header()] = "") -> Response:
        """Metrics in Prometheus' text format, or as OpenMetrics."""
        content, content_type = exposition(metrics.registry, accept)
        return Response(content, headers={"content-type": content_type})


def _add_workflows(api: FastAPI, scheduler: Scheduler) -> None:
    @api.get("/v1/workflows")
    async def workflows(request: Request) -> dict[str, Any]:
        """The namespace's workflows."""
        namespace = namespace_of(request)
        found = await scheduler.log.workflows()
        return {
            "workflows": [
                _described(name, definition)
                for name, definition in sorted(found.items())
                if name.namespace == namespace
            ]
        }

    @api.put("/v1/workflows/{name}")
    async def deploy(request: Request, name: str) -> dict[str, Any]:
        """Check a file and deploy it."""
        workflow = workflow_of(request, name)
        source = await read_text(request, "bad-file")
        outcome, definition = await scheduler.deployments.deploy(workflow, source)
        return {**_described(workflow, definition), "outcome": outcome}

    @api.delete("/v1/workflows/{name}")
    async def delete(request: Request, name: str) -> JSONResponse:
        """Delete a workflow; its runs go on."""
        workflow = workflow_of(request, name)
        if not await scheduler.deployments.delete(workflow):
            raise WorkflowError(not_deployed(workflow), "workflow-not-found")
        return JSONResponse({"name": name, "outcome": "deleted"})


def _described(name: ModelName, definition: Any) -> dict[str, Any]:
    shown = {key: definition.get(key) for key in ("kind", "parameters", "deadline_s", "sha")}
    return {"namespace": name.namespace, "name": name.name, **shown}


def _add_runs(api: FastAPI, scheduler: Scheduler) -> None:
    @api.post("/v1/workflows/{name}:run")
    async def run(request: Request, name: str) -> Response:
        """Run a workflow: wait for its result, or, as the client prefers, do not."""
        workflow = workflow_of(request, name)
        arguments = arguments_of(await read_body(request))
        begun = await scheduler.begin(
            workflow,
            arguments,
            deadline_s=deadline_of(request),
            scheduling=scheduling_of(request),
            idempotency_key=idempotency_key_of(request),
        )
        preferences = request.headers.get("prefer", "").replace(" ", "").lower().split(",")
        if "respond-async" in preferences:
            return JSONResponse(
                {"id": begun.identity, "status": begun.status.value},
                202,
                headers={
                    "location": _location(begun),
                    "x-pilotlight-run": begun.identity,
                    "preference-applied": "respond-async",
                },
            )
        if "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(
                _events(scheduler, begun),
                media_type="text/event-stream",
                headers={"x-pilotlight-run": begun.identity, "cache-control": "no-cache"},
            )
        await _wait_ended(scheduler, request, begun)
        return _result(begun)

    @api.post("/v1/graphs/{name}")
    async def graph(request: Request, name: str) -> Response:
        """Run a graph with the request's body, and answer as its last step does."""
        workflow = workflow_of(request, name)
        begun = await scheduler.begin_graph(
            workflow,
            await read_text(request),
            deadline_s=deadline_of(request),
            scheduling=scheduling_of(request),
        )
        await _wait_ended(scheduler, request, begun)
        return _graph_response(begun)

    @api.get("/v1/workflows/{name}/runs/{identity}")
    async def status(request: Request, name: str, identity: str) -> dict[str, Any]:
        """Status, result or error of a run; the name `-` stands for any workflow."""
        if name == ANY_WORKFLOW:
            return await scheduler.outcome(ModelName(namespace_of(request), name), identity)
        return await scheduler.outcome(workflow_of(request, name), identity)

    @api.delete("/v1/workflows/{name}/runs/{identity}")
    async def cancel(request: Request, name: str, identity: str) -> JSONResponse:
        """Cancel a run; one that has ended stays as it is, and the outcome says how."""
        outcome = await scheduler.cancel(workflow_of(request, name), identity)
        is_accepted = outcome is RunStatus.CANCELLED
        return JSONResponse({"id": identity, "outcome": outcome.value}, 202 if is_accepted else 200)


async def _wait_ended(scheduler: Scheduler, request: Request, run: Run) -> None:
    """Wait for a run's end; a client that disconnects cancels the run."""
    await unless_disconnected(request.receive, run.ended.wait())
    if not run.ended.is_set():
        scheduler.abandon(run)


def _result(run: Run) -> Response:
    if run.status is not RunStatus.SUCCEEDED:
        return _failed(run)
    content = orjson.dumps({"id": run.identity, "result": run.items or run.result})
    headers = {"x-pilotlight-run": run.identity}
    return Response(content, media_type="application/json", headers=headers)


def _graph_response(run: Run) -> Response:
    """The body of the graph's last step, with its status; JSON is marked as such."""
    if run.status is not RunStatus.SUCCEEDED:
        return _failed(run)
    headers = {"x-pilotlight-run": run.identity}
    body = str(run.result["body"]).encode()
    try:
        orjson.loads(body)
        headers["content-type"] = "application/json"
    except ValueError:
        headers["content-type"] = "text/plain; charset=utf-8"
    return Response(body, int(run.result["status"]), headers=headers)


def _failed(run: Run) -> JSONResponse:
    error = run.error or {"message": "the run was cancelled", "reason": "cancelled", "status": 499}
    document = {"id": run.identity, **error_document(error)}
    headers = {"x-pilotlight-run": run.identity, "x-pilotlight-reason": str(error["reason"])}
    return JSONResponse(document, int(error["status"]), headers=headers)


def error_document(error: Any) -> dict[str, Any]:
    shown = {"error": error["message"], "reason": error["reason"]}
    return shown | {key: error[key] for key in ("line", "exception") if key in error}


async def _events(scheduler: Scheduler, run: Run) -> AsyncIterator[bytes]:
    """The items of a run as they come, then its result or its error."""
    sent = 0
    try:
        while True:
            for item in run.items[sent:]:
                yield _event("item", item)
                sent += 1
            if run.ended.is_set():
                break
            async with run.changed:
                await run.changed.wait_for(
                    lambda: len(run.items) > sent or run.ended.is_set()  # noqa: B023 - read at once
                )
        if run.status is RunStatus.SUCCEEDED:
            yield _event("end", {"id": run.identity, "result": run.result})
        else:
            yield _event("error", {"id": run.identity, **error_document(run.error)})
    finally:
        scheduler.abandon(run)


def _event(kind: str, value: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n".encode()


def _location(run: Run) -> str:
    name = run.workflow
    prefix = "" if name.namespace == "default" else f"/serving/{name.namespace}/{name.name}"
    return f"{prefix}/v1/workflows/{name.name}/runs/{run.identity}"
