"""Passes requests about workflows to a scheduler, with the namespace that they are authorised for.

Responses are streamed; a client that disconnects ends the request at the scheduler.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive

from common.http_client import HttpClient, StreamedResponse
from common.http_connection import HttpError, NotConnected
from common.http_server import unless_disconnected
from common.pod_secret import PodSecret
from common.tls import PartTls
from gateway.errors import BadRequest, NotReady, ShuttingDown, UpstreamLost
from gateway.http.body import BodyLimits, HeldBodies, IncomingBody
from gateway.request_task import Shutdown

MAX_BODY_BYTES: Final = 16 * 1024**2
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PASSED_ON: Final = (
    "accept", "content-type", "idempotency-key", "prefer", "x-pilotlight-deadline-ms",
    "x-pilotlight-scheduling", "x-request-id",
)  # fmt: skip
_NOT_RETURNED: Final = frozenset(("connection", "date", "keep-alive", "transfer-encoding"))
_UNAVAILABLE: Final = (
    "workflows are not served: no scheduler of workflows runs at the address of --workflows-url"
)
_STOPPED: Final = "the scheduler of workflows has shut down, and the gateway will"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class WorkflowProxy:
    def __init__(
        self,
        url: str,
        secret: PodSecret,
        tls: PartTls,
        limits: BodyLimits,
        held: HeldBodies,
        shutdown: Shutdown,
    ) -> None:
        """`url`: of the scheduler; empty: there is none. `limits`, `held`: as of inference."""
        parts = urlsplit(url)
        self._address = (
            f"{parts.hostname}:{parts.port or _DEFAULT_PORTS[parts.scheme]}" if url else ""
        )
        self._client = HttpClient(tls=tls)
        self._secret = secret
        self._limits = limits
        if limits.max_bytes > MAX_BODY_BYTES:
            fixed = "fixed for workflows and graphs"
            self._limits = replace(limits, max_bytes=MAX_BODY_BYTES, max_bytes_from=fixed)
        self._held = held
        self._shutdown = shutdown

    def close(self) -> None:
        self._client.close()

    async def respond(self, request: Request) -> Response:
        """The scheduler's response.

        Raises ShuttingDown, NotReady, UpstreamLost, BadRequest, RequestBodyTooLarge, BodyTooSlow,
        BodiesFull.
        """
        self._shutdown.refuse_new()
        if request.scope["path"] == "/" and not request.scope.get("pilotlight.name"):
            raise BadRequest(
                "a request to / is for an InferenceGraph: name it by /serving/NAMESPACE/NAME or by "
                "a Host such as NAME.NAMESPACE.example.com"
            )
        if not self._address:
            raise NotReady(_UNAVAILABLE, retry_after_s=1.0)
        namespace = request.scope.get("pilotlight.namespace", "default")
        if not _NAMESPACE.fullmatch(namespace):
            raise BadRequest(f"{namespace[:80]!r} is not the name of a namespace")
        source = _RequestSource(request.receive)
        body = IncomingBody(source, _content_length(request), self._limits, self._held)
        stack = AsyncExitStack()
        try:
            await body.receive_rest()
            exchange = self._exchange(request, namespace, body)
            begun = stack.enter_async_context(exchange)
            response = await unless_disconnected(request.receive, begun)
            if response is None:
                raise UpstreamLost("the client disconnected")
        except NotConnected:
            if self._shutdown.has_begun:  # the scheduler's may be over
                raise ShuttingDown(_STOPPED, retry_after_s=1.0) from None
            raise NotReady(_UNAVAILABLE, retry_after_s=1.0) from None
        except HttpError as error:
            raise UpstreamLost(f"the scheduler was lost during the request: {error}") from error
        finally:
            body.close()

        async def content() -> AsyncIterator[bytes]:
            async with stack:
                async for chunk in response.chunks():
                    yield chunk

        headers = {n: value for n, value in response.headers.items() if n not in _NOT_RETURNED}
        return StreamingResponse(content(), response.status, headers=headers)

    def _exchange(
        self, request: Request, namespace: str, body: IncomingBody
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """A scheduler that ends may close an idle connection as the request is sent on it.

        Then one that can be repeated is sent again.
        """
        path = request.scope["raw_path"].decode("latin-1")
        if path == "/":
            path = f"/v1/graphs/{quote(request.scope['pilotlight.name'])}"
        passed = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers = {"x-pilotlight-namespace": namespace, **passed, **self._secret.headers}
        return self._client.stream(
            request.method,
            self._address,
            path,
            headers,
            body.buffered,
            resends=request.method != "POST" or "idempotency-key" in request.headers,
        )


class _RequestSource:
    """A request's body as `IncomingBody` reads it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    def take_chunks(self) -> list[bytes]:
        return []

    async def receive_chunks(self) -> list[bytes]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client disconnected before the end of the body")
        self.is_complete = not message.get("more_body", False)
        return [chunk] if (chunk := message.get("body", b"")) else []


def _content_length(request: Request) -> int | None:
    text = request.headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def workflow_routes(proxy: WorkflowProxy) -> APIRouter:
    router = APIRouter()
    for method, path, name, description in _ROUTES:
        router.add_api_route(
            path,
            proxy.respond,
            methods=[method],
            name=name,
            description=description,
            tags=["workflows"],
        )
    return router


_ROUTES: Final = (
    (
        "POST", "/", "graph",
        "Run the InferenceGraph that the prefix or the Host names, as KServe's router does.",
    ),
    ("GET", "/v1/workflows", "workflows", "The namespace's workflows."),
    ("PUT", "/v1/workflows/{name}", "deploy", "Deploy a workflow's file: the body."),
    ("DELETE", "/v1/workflows/{name}", "delete", "Delete a workflow."),
    (
        "POST", "/v1/workflows/{name}:run", "run",
        "Run a workflow with the arguments of the JSON body.",
    ),
    (
        "GET", "/v1/workflows/{name}/runs/{identity}", "status",
        "A run's status, result or error, and steps.",
    ),
    ("DELETE", "/v1/workflows/{name}/runs/{identity}", "cancel", "Cancel a run."),
)  # fmt: skip
