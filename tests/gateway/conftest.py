"""Fixtures of the gateway's tests."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from registry.domain.model import ModelSpec
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness

_pool_numbers = itertools.count(1)


@pytest.fixture
def pool() -> str:
    """A pool that no other test uses."""
    return f"gateway-{next(_pool_numbers)}"


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    # No expiry: a thread that closes an idle connection may close another's that is in use.
    limits = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(trust_env=False, timeout=120, limits=limits) as shared:
        yield shared


@pytest.fixture(scope="module")
def shared_gateway(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[servers.Gateway, str]]:
    """A gateway for all tests of a module, and its pool."""
    pool = f"gateway-{next(_pool_numbers)}"
    folder = tmp_path_factory.mktemp("gateway")
    with servers.gateway(folder, redis_url=redis.url, pool=pool) as started:
        yield started, pool


@pytest.fixture(scope="module")
def another_gateway(
    redis: servers.RedisServer,
    shared_gateway: tuple[servers.Gateway, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., servers.Gateway]]:
    """Starts other gateways of the pool, with other settings."""
    with ExitStack() as stack:

        def start(**settings: Any) -> servers.Gateway:
            folder, pool = tmp_path_factory.mktemp("another"), shared_gateway[1]
            return stack.enter_context(
                servers.gateway(folder, redis_url=redis.url, pool=pool, **settings)
            )

        yield start


@pytest.fixture(scope="module")
def shared(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHarness]:
    """Another gateway of the module, with the pod of `spec`, for tests that change neither."""
    pool = f"gateway-{next(_pool_numbers)}"
    with running_harness(tmp_path_factory.mktemp("shared"), redis.url, pool, client) as started:
        yield started


@pytest.fixture(scope="module")
def spec(shared: GatewayHarness) -> ModelSpec:
    """A model that is warm at the pod of `shared`."""
    declared = shared.declare()
    shared.start_pods("pod-a", slots=4, warm=declared)
    return declared


@pytest.fixture
def harness(
    redis: servers.RedisServer, shared_gateway: tuple[servers.Gateway, str], client: httpx.Client
) -> Iterator[GatewayHarness]:
    """The module's gateway, in a pool that has only this test's pods."""
    gateway, pool = shared_gateway
    with ExitStack() as stack:
        started = GatewayHarness(redis.url, pool, gateway, client, stack)
        yield started
        started.threads.shutdown(cancel_futures=True)
    servers.wait_until(
        lambda: client.get(f"{gateway.url}/readyz").json()["pods"] == 0, what="pods gone"
    )
    assert gateway.process.poll() is None, gateway.log
