"""Servers shared by the gateway's tests: one Redis, a pool for every test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests import servers

_pools = itertools.count(1)


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RedisServer]:
    with servers.redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def pool() -> str:
    """A pool that no other test uses."""
    return f"gateway-{next(_pools)}"
