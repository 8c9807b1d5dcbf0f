"""The HTTP server: KServe's, with the pod's routes first, on the pod's own socket.

KServe's server binds 0.0.0.0, handles the process's signals and logs four lines for each request;
this module overrides all three.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Final

from kserve import ModelServer
from kserve.logging import logger as kserve_logger
from kserve.model_server import app as kserve_app
from kserve.protocol.rest.server import RESTServer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match

from common.http_server import HttpServer
from common.pod_secret import HEADER
from runtime.errors import Unauthorized
from runtime.protocols.response import error_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from common.pod_secret import PodSecret
    from common.tls import PartTls

KEEP_ALIVE_S = 65
CLOSE_TIMEOUT_S = 5
BACKLOG = 1024


OPEN_PATHS: Final = frozenset({"/", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""For the kubelet's probes and for Prometheus, which have no secret."""
OPEN_METHODS: Final = frozenset({"GET", "HEAD"})
REFUSAL: Final = (
    f"pods accept requests of their gateway and autoscaler only: the header {HEADER} must have a"
    " secret of --pod-secret-file; send requests to the gateway"
)
_HEADER: Final = HEADER.encode()


class PodRestServer(RESTServer):  # type: ignore[misc]  # kserve ships no types
    """KServe's routes without its middleware."""

    def _add_middlewares(self, app: FastAPI) -> None:
        """Add no middleware: KServe's timing middleware writes two log lines for each request."""


class PodServer(ModelServer):  # type: ignore[misc]  # kserve ships no types
    """KServe's model server in one process with one event loop; `routes` come before KServe's."""

    def __init__(self, routes: Sequence[Route], secret: PodSecret, tls: PartTls) -> None:
        if not kserve_logger.handlers:  # with a handler, KServe does not reconfigure all logging
            kserve_logger.addHandler(logging.NullHandler())
        super().__init__(
            http_port=0,
            workers=1,
            enable_grpc=False,
            enable_latency_logging=False,
        )
        rest = PodRestServer(
            "kserve.model_server:app", self.dataplane, self.model_repository_extension, 0
        )
        rest.create_application()
        kserve_app.add_exception_handler(HTTPException, _http_error)
        for route in reversed(routes):
            kserve_app.router.routes.insert(0, route)
        app: ASGIApp = DirectRoutes(kserve_app, routes)
        app = SecretCheck(app, secret) if secret.is_required else app
        self._server = HttpServer(
            GoneClients(app), tls=tls.server, keep_alive_s=KEEP_ALIVE_S, drain_s=CLOSE_TIMEOUT_S,
            interface="asgi3",
        )  # fmt: skip

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `close`."""
        await self._server.serve(sockets=[listener])

    def close(self) -> None:
        """Stop accepting and let `serve` return."""
        self._server.stop()


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    """The response to an unknown path or method, in the form of KServe's errors."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 selects a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


class GoneClients:
    """ASGI middleware: what is sent to a client that is gone is dropped, as uvicorn does.

    uvloop closes a connection a turn of the loop before it tells uvicorn's protocol; a response
    that is written between fails, which would be logged as an error of the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_if_open(message: Message) -> None:
            try:
                await send(message)
            except RuntimeError as error:
                if "the handler is closed" not in str(error):
                    raise

        await self._app(scope, receive, send_if_open)


class DirectRoutes:
    """An ASGI application around the pod's: routes to other ones go without its middleware.

    These send the response to every error themselves, so it would only cost time: five layers and
    a search through all routes take seven times as long as this (docs/runtime.md, CPU time of a
    request).
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        """Routes in order; all that match none of those with ASGI endpoints goes to `app`."""
        self._app = app
        self._routes = [route for route in routes if route.app is route.endpoint]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send)
                return
        await self._app(scope, receive, send)


class SecretCheck:
    """Refuses HTTP requests that do not carry the shared secret, before anything is read."""

    def __init__(self, app: ASGIApp, secret: PodSecret) -> None:
        self._app = app
        self._secret = secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        status, body, headers = error_response(Unauthorized(REFUSAL))
        raw = [(name.encode(), value.encode()) for name, value in headers]
        raw.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    def _is_allowed(self, scope: Scope) -> bool:
        given = None
        for name, value in scope["headers"]:
            if name == _HEADER:
                given = value
                break
        if given is not None and self._secret.accepts(given):
            return True
        return scope["path"] in OPEN_PATHS and scope["method"] in OPEN_METHODS
