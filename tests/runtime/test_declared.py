"""Pods that requests may be forwarded to: those of the copy, and those that it lacks yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from registry.client import Registry
from registry.pod import PodInfo
from registry.watch import ClusterWatch
from runtime.declared import DeclaredModels

if TYPE_CHECKING:
    from tests.servers import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_pod_that_the_copy_has_not_heard_of_is_asked_for(redis: RedisServer) -> None:
    registry = await Registry.connect(redis.url, "of-declared")
    try:
        declared = DeclaredModels(ClusterWatch(registry), registry)
        await registry.register_pod(PodInfo("new", "127.0.0.1:9", "node", slots=1))
        assert await declared.is_pod("127.0.0.1:9")
        assert not await declared.is_pod("127.0.0.1:10")
        assert not await declared.is_pod(None)
    finally:
        await registry.close()
