"""A known path with another method is 405, and says which methods it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.http.probe_server import ProbeServer
from tests import servers
from tests.gateway.gateway_harness import exchange_bytes

if TYPE_CHECKING:
    from tests.gateway.gateway_harness import GatewayHarness


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/models/m:predict", "POST"),
        ("PUT", "/v1/models/m:predict", "POST"),
        ("HEAD", "/v1/models/m%3Apredict", "POST"),
        ("GET", "/v1/models/m:explain", "POST"),
        ("GET", "/v2/models/m/infer", "POST"),
        ("OPTIONS", "/v2/models/m/versions/1/infer", "POST"),
        ("GET", "/serving/a/m/v2/models/m/infer", "POST"),
        ("GET", "/openai/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models/m", "GET"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/v2/models/m/ready", "GET"),
        ("GET", "/v2/repository/index", "POST"),
        ("POST", "/healthz", "GET"),
        ("POST", "/metrics", "GET"),
        ("DELETE", "/openai/v1/models/m", "GET"),
        ("PUT", "/serving/a/graph/", "GET, POST"),
        ("POST", "/v1/workflows", "GET"),
        ("POST", "/v1/workflows/w", "PUT, DELETE"),
        ("GET", "/v1/workflows/w:run", "POST"),
        ("PUT", "/v1/workflows/w%3arun", "POST"),
        ("PUT", "/v1/workflows/w/runs/1", "GET, DELETE"),
        ("POST", "/console/requests", "GET"),
    ],
)
def test_another_method_is_405_and_names_the_methods(
    shared: GatewayHarness, method: str, path: str, allowed: str
) -> None:
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    response = exchange_bytes(shared.gateway.port, head.encode()).decode()
    assert response.startswith("HTTP/1.1 405 "), response
    assert f"\r\nallow: {allowed}\r\n" in response
    assert "\r\nx-pilotlight-reason: method-not-allowed\r\n" in response
    assert method == "HEAD" or f"takes the methods {allowed}, was {method}" in response


def test_a_slash_too_many_is_no_way_into_another_namespace(shared: GatewayHarness) -> None:
    response = shared.client.get(f"{shared.gateway.url}/serving/a/m/v1/models/")
    assert response.status_code == 404


def test_probes_take_get() -> None:
    probes, port = ProbeServer({"/healthz": lambda: True}), servers.free_port()
    probes.start("127.0.0.1", port)
    try:
        response = exchange_bytes(port, b"POST /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 405 "), response
        assert b"\r\nallow: GET\r\n" in response
    finally:
        probes.close()
