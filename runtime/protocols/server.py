"""The HTTP server: KServe's, with our routes first, on a socket of our own, without log lines.

KServe's server binds 0.0.0.0, takes the process's signals and logs four lines for each request;
these are the places where that is undone.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.routing import Route

    from runtime.loading.model_store import ModelStore

KEEP_ALIVE_S = 65
LONGEST_CLOSE_S = 5
BACKLOG = 1024


class QuietServer(uvicorn.Server):
    """Uvicorn that leaves signals to the pod."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The pod drains on SIGTERM; uvicorn must not end the process by itself."""
        yield


class PodRestServer(RESTServer):  # type: ignore[misc]  # kserve ships no types
    """KServe's routes behind ours."""

    def _add_middlewares(self, app: FastAPI) -> None:
        """None: the timing middleware writes two log lines for each request."""


class PodServer(ModelServer):  # type: ignore[misc]  # kserve ships no types
    """One process, one event loop, many models."""

    def __init__(self, store: ModelStore, routes: Sequence[Route]) -> None:
        if not kserve_logger.handlers:  # keeps KServe from configuring all logging its way
            kserve_logger.addHandler(logging.NullHandler())
        super().__init__(
            http_port=0,
            workers=1,
            registered_models=store,
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
        self._server = QuietServer(
            uvicorn.Config(
                kserve_app,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LONGEST_CLOSE_S,
            )
        )

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `close`."""
        await self._server.serve(sockets=[listener])

    def close(self) -> None:
        """Stop accepting and let `serve` return."""
        self._server.should_exit = True


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    """No such path or method, in the form that KServe's errors have."""
    del request
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
