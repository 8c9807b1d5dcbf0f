"""ASGI endpoints beside the framework's application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from runtime.protocols.direct_routes import DirectRoutes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send


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
    app: ASGIApp = DirectRoutes(Starlette(routes=routes), routes)
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
