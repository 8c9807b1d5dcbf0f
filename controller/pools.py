"""Clients of the pools' registries, and the phases of pods that the cluster ends or replaces.

The registry gets a pod's phase before the pod's own process reports it, so that pods about to end
get no new requests.
"""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from controller.api import ClusterApi
from controller.objects import ClusterObjects
from controller.pool_size import DrainTracker, replaced_pods
from controller.resources import PodObject
from registry.domain.canaries import Canaries
from registry.domain.cluster import ClusterState
from registry.domain.pod import PodPhase
from registry.domain.pod_state import PodState
from registry.errors import LeaseLost
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

FENCED_RETRY_S = 5.0


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


class TenantRulesWriter:
    """Writes the rules of each pool to its registry. Used by one task only."""

    def __init__(
        self,
        api: ClusterApi,
        objects: ClusterObjects,
        registries: PoolRegistries,
        token: Callable[[], int],
    ) -> None:
        """`token`: fences the writes of a controller that leads no more."""
        self._api = api
        self._objects = objects
        self._registries = registries
        self._token = token
        self._reported: dict[str, tuple[str, ...]] = {}
        """By uid: mistakes that an event was posted about."""

    async def update(self) -> float | None:
        """See `controller.Reconcile`: writes what has changed."""
        wait_s = None
        for pool in self._objects.pools():
            registry, rules = self._registries.get(pool), self._objects.rules(pool)
            if not registry.is_synced or registry.state.rules == rules:
                continue
            if await registry.client.put_rules(rules, self._token()):
                logger.info("rules for tenants written", extra={"pool": pool})
            else:
                wait_s = FENCED_RETRY_S
                logger.warning("a newer leader has written the rules", extra={"pool": pool})
        for each in self._objects.tenants.values():
            if each.problems and self._reported.get(each.uid) != each.problems:
                await self._api.post_event(
                    each.name,
                    each.uid,
                    reason="InvalidTenant",
                    message="; ".join(each.problems),
                    is_warning=True,
                    kind=("v1", "ConfigMap"),
                )
                self._reported[each.uid] = each.problems
        return wait_s


class PodPhases:
    """Writes the phases that follow from the cluster's pods. Used by one task only."""

    def __init__(self, objects: ClusterObjects, registries: PoolRegistries) -> None:
        self._objects = objects
        self._registries = registries
        self._trackers: defaultdict[str, DrainTracker] = defaultdict(DrainTracker)
        """By pool."""

    async def update(self) -> None:
        """Write new phases and removals to the registries. Raises RegistryUnavailable."""
        while removed := self._objects.removed_pods:
            await self._deregister(removed[0])
            del removed[0]  # others may have been added
        pods = list(self._objects.pods.values())
        services = self._objects.services.items()
        replaced = replaced_pods(pods, {name: each.status for name, each in services})
        for pool, registry in self._registries.opened().items():
            of_pool = [pod for pod in pods if pod.pool == pool]
            draining = {pod.uid for pod in of_pool if pod.is_ending or pod in replaced}
            await self._update_pool(registry, self._trackers[pool], of_pool, draining)

    async def _update_pool(
        self,
        registry: PoolRegistry,
        tracker: DrainTracker,
        pods: Sequence[PodObject],
        draining: set[str],
    ) -> None:
        now_s = time.monotonic()
        tracker.observe(registry.state.pods, now_s)
        cancellable = set(tracker.cancellable(now_s))
        for pod in pods:
            found = _registered(registry, pod)
            if found is None:
                continue
            if pod.uid in draining and found.phase is not PodPhase.DRAINING:
                await self._set_phase(registry, found, PodPhase.DRAINING)
                tracker.start(found, now_s)
            elif pod.uid not in draining and pod.revision and pod.name in cancellable:
                # Knative rolled back.
                await self._set_phase(registry, found, PodPhase.READY)
                tracker.cancel(pod.name)

    async def _set_phase(self, registry: PoolRegistry, pod: PodState, phase: PodPhase) -> None:
        with suppress(LeaseLost):  # the pod is gone already
            await registry.client.set_phase(pod.name, pod.epoch, phase)
            logger.info("pod phase set", extra={"pod": pod.name, "phase": phase.value})

    async def _deregister(self, pod: PodObject) -> None:
        registry = self._registries.opened().get(pod.pool)
        registered = _registered(registry, pod) if registry is not None else None
        if registry is not None and registered is not None:
            await registry.client.deregister_pod(pod.name, registered.epoch)


def _registered(registry: PoolRegistry, pod: PodObject) -> PodState | None:
    """The registered pod that is this object: any tenant may create a pod of the same name."""
    found = registry.state.pods.get(pod.name)
    return found if found is not None and found.info.uid == pod.uid else None
