"""The platform's connection to its registry, with a watched copy of the cluster's state."""

import asyncio
from collections.abc import Callable
from typing import Self

from pilotlight.errors import StartFailed
from registry.domain.cluster import ClusterState
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch

_SYNC_TIMEOUT_S = 10.0


class ClusterConnection:
    """A registry client, and the state of pods and models as it changes."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.watch = ClusterWatch(registry)
        self._watch_task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Event] = []

    @classmethod
    async def open(cls, redis_url: str, pool: str, group: asyncio.TaskGroup) -> Self:
        """Connect and read the state once; raises StartFailed. The watch is a task of `group`."""
        try:
            connection = cls(await Registry.connect(redis_url, pool))
        except RegistryUnavailable as error:
            raise StartFailed(f"no registry at {redis_url}: {error}") from error
        connection.watch.subscribe(connection._on_change)
        connection._watch_task = group.create_task(connection.watch.run())
        try:
            async with asyncio.timeout(_SYNC_TIMEOUT_S):
                await connection.watch.wait_synced()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
        await self.registry.close()

    @property
    def state(self) -> ClusterState:
        return self.watch.state

    async def wait_until(
        self, condition: Callable[[], bool], *, timeout_s: float, what: str
    ) -> None:
        """Return once `condition` holds; it is evaluated at every change of the state.

        Raises:
            StartFailed: after the timeout; the message contains `what`.
        """
        changed = asyncio.Event()
        self._waiters.append(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise StartFailed(f"timeout after {timeout_s:g} s, waiting for: {what}") from None
        finally:
            self._waiters.remove(changed)

    def _on_change(self) -> None:
        for changed in self._waiters:
            changed.set()
