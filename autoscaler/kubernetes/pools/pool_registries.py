"""The registries of the pools: one watched copy per pool, opened when the pool is first named."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.canaries import Canaries
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from registry.domain.cluster import ClusterState


@dataclass(frozen=True, slots=True)
class PoolRegistry:
    """One pool's registry and our copy of it."""

    registry: Registry
    watch: ClusterWatch
    canaries: Canaries

    @property
    def state(self) -> ClusterState:
        """The copy."""
        return self.watch.state

    @property
    def is_synced(self) -> bool:
        """Whether the copy was complete once and changes are pushed to it."""
        return self.watch.is_connected and not math.isinf(self.watch.age_s())


class PoolRegistries:
    """All pools' links. Their tasks end with the group they are given."""

    def __init__(
        self, redis_url: str, tasks: asyncio.TaskGroup, on_change: Callable[[], None]
    ) -> None:
        self._redis_url = redis_url
        self._tasks = tasks
        self._on_change = on_change
        self._links: dict[str, PoolRegistry] = {}
        self._watching: list[asyncio.Task[None]] = []

    def of(self, pool: str) -> PoolRegistry:
        """A pool's link, opened where it is not yet."""
        link = self._links.get(pool)
        if link is None:
            registry = Registry(self._redis_url, pool)
            watch = ClusterWatch(registry, counts=False)
            link = PoolRegistry(registry, watch, Canaries(watch.state))
            link.watch.subscribe(self._on_change)
            self._watching.append(self._tasks.create_task(link.watch.run()))
            self._links[pool] = link
        return link

    def known(self) -> dict[str, PoolRegistry]:
        """Links by pool."""
        return dict(self._links)

    async def close(self) -> None:
        """End all of them."""
        for task in self._watching:
            task.cancel()
        for link in self._links.values():
            await link.registry.close()
