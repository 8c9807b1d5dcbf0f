"""Fixtures: a gateway with a picker, and Envoys that ask it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import servers
from tests.envoy.envoy_proxy import PROGRAM, Envoy, envoy
from tests.gateway.conftest import client, pool
from tests.gateway.gateway_harness import GatewayHarness, PodProcess, running_harness

__all__ = ["client", "pool"]

StartEnvoy = Callable[..., Envoy]


@pytest.fixture(autouse=True)
def _program() -> None:
    if not PROGRAM:
        pytest.skip("needs Envoy: make test-envoy")


@pytest.fixture
def picker_port() -> int:
    return servers.free_port()


@pytest.fixture
def harness(
    redis: servers.RedisServer, tmp_path: Path, client: httpx.Client, pool: str, picker_port: int
) -> Iterator[GatewayHarness]:
    settings = {"picker_port": picker_port, "picker_tls": "off"}
    with running_harness(tmp_path, redis.url, pool, client, **settings) as started:
        yield started


@pytest.fixture
def start_envoy(tmp_path: Path, picker_port: int) -> Iterator[StartEnvoy]:
    """Starts Envoys before some pods; `options` as of `envoy_proxy.configuration`."""
    with ExitStack() as stack:

        def start(*pods: PodProcess, **options: Any) -> Envoy:
            ports = [port for each in pods for port in each.ports.values()]
            return stack.enter_context(envoy(tmp_path, picker_port, ports, **options))

        yield start
