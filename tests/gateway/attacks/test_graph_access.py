"""The URL of another tenant's InferenceGraph ends in `/`, which is public without a name."""

from collections.abc import Iterator

import pytest

from tests import servers
from tests.gateway.gateway_harness import exchange_bytes

KEYS = {"red": "red-key-red-key-red", "blue": "blue-key-blue-key-b"}


@pytest.fixture(scope="module")
def gateway(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Gateway]:
    """Whoever is let through gets 503: its scheduler cannot be reached."""
    keys = tmp_path_factory.mktemp("keys")
    for tenant, key in KEYS.items():
        (keys / tenant).write_text(key)
    with servers.gateway(
        tmp_path_factory.mktemp("gateway"),
        redis_url=redis.url,
        pool="graph-access",
        api_keys=keys,
        workflows_url=f"http://127.0.0.1:{servers.free_port()}",
    ) as started:
        yield started


def status_of(gateway: servers.Gateway, path: str, host: str, key: str) -> int:
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-length: 2"]
    lines += [f"x-api-key: {key}"] if key else []
    request = "\r\n".join([*lines, "", "{}"]).encode()
    return int(exchange_bytes(gateway.port, request)[9:12])


@pytest.mark.parametrize("path", ["/serving/blue/graph", "/serving/blue/graph/"])
@pytest.mark.parametrize(
    ("key", "status"),
    [
        pytest.param("", 401, id="no key"),
        pytest.param(KEYS["red"], 401, id="another tenant's"),
        pytest.param(KEYS["blue"], 503, id="its own"),
    ],
)
def test_a_graph_by_its_path_needs_its_tenants_key(
    gateway: servers.Gateway, path: str, key: str, status: int
) -> None:
    assert status_of(gateway, path, "x", key) == status


@pytest.mark.parametrize(
    ("key", "status"),
    [
        pytest.param("", 400, id="no key"),
        pytest.param(KEYS["red"], 400, id="another tenant's"),
        pytest.param(KEYS["blue"], 503, id="its own"),
    ],
)
def test_a_graph_by_its_host_needs_its_tenants_key(
    gateway: servers.Gateway, key: str, status: int
) -> None:
    assert status_of(gateway, "/", "graph.blue.example.com", key) == status
