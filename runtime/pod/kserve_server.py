"""The pod's face: KServe's `ModelServer`, and all that is emptied or replaced of it, with reasons.

Kept: its FastAPI application with `/`, `/metrics`, its error handlers and every route that the pod
has no own one for, its histograms (`runtime/metrics.py`), its gRPC port and time of keep-alive.

- Its command line, which importing it parses, is cut off before (`__main__`, `forkserver`): a pod's
  flags are those of `RuntimeSettings`.
- Its configuration of logging, which would replace the pod's, is kept off by a handler.
- `start`, with its own uvicorn, is not called: it binds 0.0.0.0 where pods share a host, takes the
  signals that end the pod's parts in order, and starts processes, which would each have a device.
- Its middleware is left out: it writes two lines for each request, beside uvicorn's two.
- Its routes of inference, models and the repository come after the pod's: they run a model in the
  event loop, and know no cold models, slots, deadlines or binary tensors.
- Inference passes the framework by (`PodApplication`): its five layers cost seven times as much.
- Its gRPC server is replaced (`grpc_service.py`): it fails every load, and errors are UNKNOWN.
- Its answer to an unknown path has the form of its other errors.
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
from runtime.protocols.asgi_app import PodApplication

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.routing import Route


KEEP_ALIVE_S = 65
CLOSE_TIMEOUT_S = 5
BACKLOG = 1024


class PodRestServer(RESTServer):  # type: ignore[misc]  # kserve ships no types
    def _add_middlewares(self, app: FastAPI) -> None:
        """Add none."""


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
