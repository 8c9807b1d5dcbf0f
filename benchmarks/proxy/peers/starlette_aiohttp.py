"""A faster Python proxy: Starlette on uvicorn with aiohttp."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def create_app(upstream: str) -> Starlette:
    """The proxy; one session with unbounded keep-alive connections."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            app.state.session = session
            yield

    async def forward(request: Request) -> Response:
        session: aiohttp.ClientSession = request.app.state.session
        async with session.post(
            upstream + request.url.path,
            data=await request.body(),
            headers={"content-type": request.headers["content-type"]},
        ) as response:
            return Response(
                await response.read(), response.status, media_type=response.headers["content-type"]
            )

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])], lifespan=lifespan)
