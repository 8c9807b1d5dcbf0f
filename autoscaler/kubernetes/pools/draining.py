"""Drains pods before their removal: no new requests, and time to finish the running ones."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from autoscaler.kubernetes.cluster.object_readers import PodObject
from autoscaler.kubernetes.pools.leaving_pods import DrainTracker
from autoscaler.kubernetes.pools.pool_size import pods_to_drain
from registry.domain.pod import PodPhase
from registry.domain.pod_state import PodState
from registry.errors import LeaseLost
from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

DRAIN_S: Final = 300.0
"""Time for a leaving pod to finish its requests: what Knative allows one by default
(revision-timeout-seconds)."""


class PodDrain:
    """The drains of one pool. Used by one task only."""

    def __init__(self, watch: ClusterWatch, *, drain_s: float = DRAIN_S) -> None:
        self._watch = watch
        self._drain_s = drain_s
        self._tracker = DrainTracker()
        self._awaited: list[str] = []

    def is_done(self) -> bool:
        """True if the pods for which the last `update` returned None are drained by now."""
        return bool(self._awaited) and not self._unfinished(self._awaited)

    async def update(
        self,
        leaving: Sequence[str],
        *,
        pods: int,
        list_pods: Callable[[], Awaitable[list[PodObject]]],
    ) -> tuple[str, ...] | None:
        """Start to drain the pods in `leaving`, and cancel the drains of all others.

        Returns these pods once each is drained or its `drain_s` has passed; None before. Raises
        RegistryUnavailable, KubernetesError.
        """
        state, now_s = self._watch.state.pods, time.monotonic()
        self._tracker.observe(state, now_s)
        serving = [name for name in state if not self._tracker.is_shutting_down(name)]
        draining = pods_to_drain(leaving, serving, pods=pods)
        await self._cancel_others(draining, now_s, list_pods)
        for name in draining:
            pod = state.get(name)  # the pod may have left during an await
            if self._tracker.started_s(name) is None and pod is not None:
                logger.info("pod drains", extra={"pod": name})
                await self._set_phase(pod, PodPhase.DRAINING)
                self._tracker.start(pod, now_s)
        self._awaited = self._unfinished(draining)
        return None if self._awaited else tuple(draining)

    def _unfinished(self, names: Sequence[str]) -> list[str]:
        """The pods that have running requests and time left."""
        state, now_s = self._watch.state.pods, time.monotonic()
        return [
            name
            for name in names
            if name in state
            and not _is_drained(state[name])
            and now_s - (self._tracker.started_s(name) or now_s) < self._drain_s
        ]

    async def _cancel_others(
        self,
        draining: Sequence[str],
        now_s: float,
        list_pods: Callable[[], Awaitable[list[PodObject]]],
    ) -> None:
        returning = [name for name in self._tracker.cancellable(now_s) if name not in draining]
        if not returning:
            return
        staying = {pod.name for pod in await list_pods() if not pod.is_ending}
        for name in returning:
            pod = self._watch.state.pods.get(name)
            if name in staying and pod is not None:
                logger.info("pod drain cancelled", extra={"pod": name})
                await self._set_phase(pod, PodPhase.READY)
                self._tracker.cancel(name)

    async def _set_phase(self, pod: PodState, phase: PodPhase) -> None:
        with suppress(LeaseLost):  # the pod is gone already
            await self._watch.registry.set_phase(pod.name, pod.epoch, phase)


def _is_drained(pod: PodState) -> bool:
    return pod.phase is PodPhase.DRAINING and not pod.slots_busy and not pod.inferring
