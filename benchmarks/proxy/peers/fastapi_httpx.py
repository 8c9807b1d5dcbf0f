"""A simple Python proxy: FastAPI with httpx."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request, Response


def create_app(upstream: str) -> FastAPI:
    """The proxy; one client with unbounded keep-alive connections."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=upstream, limits=limits, trust_env=False, timeout=30)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        async with client:
            yield

    app = FastAPI(lifespan=lifespan)

    async def forward(path: str, request: Request) -> Response:
        response = await client.post(
            f"/{path}",
            content=await request.body(),
            headers={"content-type": request.headers["content-type"]},
        )
        return Response(
            response.content, response.status_code, media_type=response.headers["content-type"]
        )

    app.post("/{path:path}", response_model=None)(forward)
    return app
