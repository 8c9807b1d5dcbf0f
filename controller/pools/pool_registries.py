"""Clients of the pools' registries: one live copy per pool, opened at the first use of the pool."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from registry.domain.canaries import Canaries
from registry.domain.cluster import ClusterState
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch


@dataclass(frozen=True, slots=True)
class PoolRegistry:
    """Client and live copy of one pool's registry."""

    client: Registry
    watch: ClusterWatch
    canaries: Canaries

    @property
    def state(self) -> ClusterState:
        return self.watch.state

    @property
    def is_synced(self) -> bool:
        """True if the copy was complete once and the connection for changes is up."""
        return self.watch.is_connected and not math.isinf(self.watch.age_s())


class PoolRegistries:
    """The open registries by pool. Their tasks belong to the given task group."""

    def __init__(
        self, redis_url: str, tasks: asyncio.TaskGroup, on_change: Callable[[], None]
    ) -> None:
        self._redis_url = redis_url
        self._tasks = tasks
        self._on_change = on_change
        self._open: dict[str, PoolRegistry] = {}
        self._watching: list[asyncio.Task[None]] = []

    def get(self, pool: str) -> PoolRegistry:
        """The pool's registry; opens it if needed."""
        registry = self._open.get(pool)
        if registry is None:
            client = Registry(self._redis_url, pool)
            watch = ClusterWatch(client, counts=False)
            registry = PoolRegistry(client, watch, Canaries(watch.state))
            watch.subscribe(self._on_change)
            self._watching.append(self._tasks.create_task(watch.run()))
            self._open[pool] = registry
        return registry

    def opened(self) -> dict[str, PoolRegistry]:
        return dict(self._open)

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        for registry in self._open.values():
            await registry.client.close()
