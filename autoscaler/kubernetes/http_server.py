"""HTTP servers of the controller: one factory, and the application for health and metrics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request


class SignalFreeServer(uvicorn.Server):
    """uvicorn without its signal handlers: the controller stops all its parts together."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: Starlette, *, port: int, **options: Any) -> SignalFreeServer:
    """On all addresses: it runs in a pod."""
    config = uvicorn.Config(
        app, host="0.0.0.0", port=port, lifespan="off", log_config=None, access_log=False, **options
    )
    return SignalFreeServer(config)


def operation_app(is_ready: Callable[[], bool]) -> Starlette:
    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        return JSONResponse({"ready": is_ready()}, 200 if is_ready() else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
