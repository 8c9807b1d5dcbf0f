"""Redis, event loop and garbage collection of all tests; Hypothesis never judges by time."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import servers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

settings.register_profile(
    "unhurried",
    parent=settings(),  # locally hypothesis' defaults, in continuous integration its `ci`
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the collector all that is imported, which stays: it was a sixth of all time."""
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
    """A Redis for all tests that keep to pools of their own."""
    with servers.redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[servers.RedisServer]:
    """A Redis that a test may kill; it keeps its data like the platform's."""
    options = ("--appendonly", "yes", "--appendfsync", "no")
    with servers.redis_server(tmp_path / "redis", options=options) as server:
        yield server
