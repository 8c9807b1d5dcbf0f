"""The HTTP server: KServe's, with the pod's routes first, on the pod's own socket.

KServe's server binds 0.0.0.0, handles the process's signals and logs four lines for each request;
this module overrides all three.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kserve import ModelServer
from kserve.logging import logger as kserve_logger
from kserve.model_server import app as kserve_app
from kserve.protocol.rest.server import RESTServer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from common.http_server import HttpServer
from common.pod_secret import PodSecret
from common.tls import PartTls
from runtime.protocols.exchange import PodApplication

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.routing import Route


KEEP_ALIVE_S = 65
CLOSE_TIMEOUT_S = 5
BACKLOG = 1024


class PodRestServer(RESTServer):  # type: ignore[misc]  # kserve ships no types
    """KServe's routes without its middleware."""

    def _add_middlewares(self, app: FastAPI) -> None:
        """Add no middleware: KServe's timing middleware writes two log lines for each request."""


class PodServer(ModelServer):  # type: ignore[misc]  # kserve ships no types
    """KServe's model server in one process with one event loop; `routes` come before KServe's."""

    def __init__(self, routes: Sequence[Route], secret: PodSecret, tls: PartTls) -> None:
        if not kserve_logger.handlers:  # with a handler, KServe does not reconfigure all logging
            kserve_logger.addHandler(logging.NullHandler())
        super().__init__(http_port=0, workers=1, enable_grpc=False, enable_latency_logging=False)
        rest = PodRestServer(
            "kserve.model_server:app", self.dataplane, self.model_repository_extension, 0
        )
        rest.create_application()
        kserve_app.add_exception_handler(HTTPException, _http_error)
        for route in reversed(routes):
            kserve_app.router.routes.insert(0, route)
        self._server = HttpServer(
            PodApplication(kserve_app, routes, secret),
            tls=tls.server,
            keep_alive_s=KEEP_ALIVE_S,
            drain_s=CLOSE_TIMEOUT_S,
            interface="asgi3",
        )

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
