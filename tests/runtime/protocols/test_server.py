"""Responses to clients that are gone, on uvloop's own connections, and direct routes."""

import asyncio
from typing import Any

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.pod_secret import PodSecret
from runtime.protocols.asgi_app import PodApplication


async def _closed_transport() -> asyncio.Transport:
    """Of a connection that has just been closed."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)  # type: ignore[arg-type]

    server = await loop.create_server(Accepting, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    transport = await accepted
    transport.abort()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return transport


async def _send_to(transport: asyncio.Transport, *, is_wrapped: bool) -> None:
    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"x"})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        transport.write(message["body"])

    app = PodApplication(respond, (), PodSecret()) if is_wrapped else respond
    await app({"type": "http"}, receive, send)


def test_what_is_sent_to_a_closed_connection_is_dropped() -> None:
    async def run() -> None:
        transport = await _closed_transport()
        with pytest.raises(RuntimeError, match="the handler is closed"):
            await _send_to(transport, is_wrapped=False)
        await _send_to(transport, is_wrapped=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_other_errors_are_not_hidden() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("something else")

    async def nothing() -> Message:
        return {}

    async def ignore(message: Message) -> None: ...

    with pytest.raises(RuntimeError, match="something else"):
        asyncio.run(PodApplication(fail, (), PodSecret())({"type": "http"}, nothing, ignore))


class Echo:
    """Answers with the model of its path, and records what the framework has left in the scope."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await Response(scope["path_params"]["model"])(scope, receive, send)


async def ready(request: Request) -> Response:
    return Response(f"ready: {request.path_params['model']}")


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def client(echo: Echo) -> TestClient:
    routes = [
        Route("/v1/models/{model}:predict", echo, methods=["POST"]),
        Route("/v1/models/{model}", ready, methods=["GET"]),
    ]
    app: ASGIApp = PodApplication(Starlette(routes=routes), routes, PodSecret())
    return TestClient(app)


def test_asgi_endpoints_get_their_parameters_without_the_framework(
    client: TestClient, echo: Echo
) -> None:
    assert client.post("/v1/models/a%20b:predict").text == "a b"
    [scope] = echo.scopes
    assert "app" not in scope


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        pytest.param("GET", "/v1/models/m", (200, "ready: m"), id="function"),
        pytest.param("GET", "/v1/models/m:predict", (200, "ready: m:predict"), id="other-route"),
        pytest.param("PUT", "/v1/models/m:predict", (405, "Method Not Allowed"), id="method"),
        pytest.param("POST", "/v1/nothing", (404, "Not Found"), id="path"),
    ],
)
def test_all_others_are_the_frameworks(
    client: TestClient, echo: Echo, method: str, path: str, expected: Any
) -> None:
    response = client.request(method, path)
    assert (response.status_code, response.text) == expected
    assert echo.scopes == []
