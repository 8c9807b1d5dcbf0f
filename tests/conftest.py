"""Redis, event loop, signals and garbage collection for all tests; Hypothesis has no deadlines."""

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import servers

settings.register_profile(
    "unhurried",
    parent=settings(),  # Hypothesis' default profile, in continuous integration its `ci`
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a shell: programs that tests start and interrupt would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector during imports: it took a sixth of the whole time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RedisServer]:
    """A Redis for all tests, each of which uses a pool of its own."""
    with servers.redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[servers.RedisServer]:
    """A Redis that a test may kill; it stores its data like the platform's."""
    options = ("--appendonly", "yes", "--appendfsync", "no")
    with servers.redis_server(tmp_path / "redis", options=options) as server:
        yield server


@pytest.fixture
def data() -> Callable[[str], Path]:
    """Where a public data file is; the test is skipped where it is not."""

    def find(name: str) -> Path:
        folder = os.environ.get("PILOTLIGHT_DATA", "")
        path = Path(folder) / name
        if not folder or not path.is_file():
            pytest.skip(f"{name} is not in PILOTLIGHT_DATA ({folder or 'not set'})")
        return path

    return find
