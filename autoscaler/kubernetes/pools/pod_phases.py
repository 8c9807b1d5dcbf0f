"""What the cluster knows of pods before their processes do: which are to end, and which are gone.

Told to the registries, so that pods on their way out get nothing new.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from autoscaler.kubernetes.pools.drain_tracker import DrainTracker
from autoscaler.kubernetes.pools.revisions import replaced_pods
from registry.domain.pod import PodPhase
from registry.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.kubernetes.cluster.cluster_objects import ClusterObjects
    from autoscaler.kubernetes.pools.pods import PodObject
    from autoscaler.kubernetes.pools.pool_registries import PoolRegistries, PoolRegistry
    from registry.domain.pod_state import PodState

logger = logging.getLogger(__name__)


class PodPhases:
    """The phases of all pools' pods, as far as the cluster decides on them. One owner."""

    def __init__(self, objects: ClusterObjects, links: PoolRegistries) -> None:
        self._objects = objects
        self._links = links
        self._sent: defaultdict[str, DrainTracker] = defaultdict(DrainTracker)
        """By pool."""

    async def follow(self) -> None:
        """Tell the registries what has changed; raises RegistryUnavailable."""
        removed, self._objects.removed_pods = self._objects.removed_pods, []
        for pod in removed:
            await self._leave(pod)
        pods = list(self._objects.pods.values())
        services = self._objects.services.items()
        replaced = replaced_pods(pods, {name: each.status for name, each in services})
        for pool, link in self._links.known().items():
            of_pool = [pod for pod in pods if pod.pool == pool]
            going = {pod.name for pod in of_pool if pod.is_ending or pod in replaced}
            await self._follow_pool(link, self._sent[pool], of_pool, going)

    async def _follow_pool(
        self, link: PoolRegistry, sent: DrainTracker, pods: Sequence[PodObject], going: set[str]
    ) -> None:
        registered, now_s = link.state.pods, time.monotonic()
        sent.look(registered, now_s)
        returning = set(sent.to_call_back(now_s))
        for pod in pods:
            found = registered.get(pod.name)
            if found is None:
                continue
            if pod.name in going and found.phase is not PodPhase.DRAINING:
                await self._turn(link, found, PodPhase.DRAINING)
                sent.send(found, now_s)
            elif pod.revision and pod.name in returning - going:  # Knative has gone back to it
                await self._turn(link, found, PodPhase.READY)
                sent.call_back(pod.name)

    async def _turn(self, link: PoolRegistry, pod: PodState, phase: PodPhase) -> None:
        with suppress(LeaseLost):  # it is gone already
            await link.registry.set_phase(pod.name, pod.epoch, phase)
            logger.info("pod turns", extra={"pod": pod.name, "phase": phase.value})

    async def _leave(self, pod: PodObject) -> None:
        link = self._links.known().get(pod.pool)
        registered = link.state.pods.get(pod.name) if link is not None else None
        if link is not None and registered is not None:
            await link.registry.deregister_pod(pod.name, registered.epoch)
