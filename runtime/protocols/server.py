"""The HTTP server: KServe's, with the pod's routes first, on the pod's own socket.

KServe's server binds 0.0.0.0, handles the process's signals and logs four lines for each request;
this module overrides all three.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

import uvicorn
from kserve import ModelServer
from kserve.logging import logger as kserve_logger
from kserve.model_server import app as kserve_app
from kserve.protocol.rest.server import RESTServer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from runtime.protocols.direct_routes import DirectRoutes
from runtime.protocols.gone_clients import GoneClients
from runtime.protocols.secret_check import SecretCheck

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from registry.pod_secret import PodSecret
    from registry.tls import PartTls

KEEP_ALIVE_S = 65
CLOSE_TIMEOUT_S = 5
BACKLOG = 1024


class QuietServer(uvicorn.Server):
    """Uvicorn with the pod's options and without signal handlers."""

    def __init__(self, app: ASGIApp, tls: PartTls) -> None:
        config = uvicorn.Config(
            GoneClients(app),
            interface="asgi3",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            **tls.uvicorn_options,
        )
        config.load()
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: the pod drains on SIGTERM, but uvicorn would end the process."""
        yield

    async def adopt(self, connection: socket.socket, *, is_internal: bool = False) -> None:
        """Serve a connection that was accepted elsewhere; an internal one is plain.

        Raises OSError, such as ssl.SSLError.
        """
        config, loop = self.config, asyncio.get_running_loop()

        def make_protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn's own
                config=config, server_state=self.server_state, app_state={}, _loop=loop
            )

        tls = None if is_internal else config.ssl
        await loop.connect_accepted_socket(make_protocol, connection, ssl=tls)


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
        self.http = QuietServer(app, tls)

    async def serve(self, *listeners: socket.socket) -> None:
        """Serve until `close`; without a listener the connections that are adopted."""
        await self.http.serve(sockets=list(listeners))

    def close(self) -> None:
        """Stop accepting and let `serve` return."""
        self.http.should_exit = True


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
