"""The registry in memory in the place of the one in Redis."""

from collections.abc import Awaitable, Callable

import pytest

from load.simulator.memory_registry import MemoryRegistry
from registry.redis.client import Registry
from tests.load.simulator.registry.memory_client import MemoryClient

Connect = Callable[[], Awaitable[Registry]]


@pytest.fixture
def connect() -> Connect:
    """Makes clients of one registry."""
    memory = MemoryRegistry()

    async def make() -> Registry:
        return MemoryClient(memory)

    return make


@pytest.fixture
async def registry(connect: Connect) -> Registry:
    return await connect()
