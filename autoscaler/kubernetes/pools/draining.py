"""Pods that are to go finish what they have, while the registry sends them nothing new."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from autoscaler.kubernetes.pools.drain_tracker import DrainTracker
from autoscaler.kubernetes.pools.pool_size import pods_to_drain
from registry.domain.pod import PodPhase
from registry.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from autoscaler.kubernetes.pools.pods import PodObject
    from registry.domain.pod_state import PodState
    from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)


class PodDrain:
    """The pods of one pool that were sent away. One owner."""

    def __init__(self, watch: ClusterWatch, *, drain_s: float) -> None:
        self._watch = watch
        self._drain_s = drain_s
        self._sent = DrainTracker()
        self._awaited: list[str] = []

    def is_over(self) -> bool:
        """Whether the pods that the last `follow` waited for are done."""
        return bool(self._awaited) and not self._busy(self._awaited)

    async def follow(
        self,
        leaving: Sequence[str],
        *,
        pods: int,
        list_pods: Callable[[], Awaitable[list[PodObject]]],
    ) -> tuple[str, ...] | None:
        """Send away those that leave, call back those that stay.

        Answers those that leave once all of them are done, or were given long enough; None before.
        Raises RegistryUnavailable, KubernetesError.
        """
        state, now_s = self._watch.state.pods, time.monotonic()
        self._sent.look(state, now_s)
        standing = [name for name in state if not self._sent.ends_itself(name)]
        going = pods_to_drain(leaving, standing, pods=pods)
        await self._call_back(going, now_s, list_pods)
        for name in going:
            pod = state.get(name)  # it may have left while another one was told
            if self._sent.since_s(name) is None and pod is not None:
                logger.info("pod drains", extra={"pod": name})
                await self._set_phase(pod, PodPhase.DRAINING)
                self._sent.send(pod, now_s)
        self._awaited = self._busy(going)
        return None if self._awaited else tuple(going)

    def _busy(self, names: Sequence[str]) -> list[str]:
        """Those of them that have requests left, and time."""
        state, now_s = self._watch.state.pods, time.monotonic()
        return [
            name
            for name in names
            if name in state
            and not _is_done(state[name])
            and now_s - (self._sent.since_s(name) or now_s) < self._drain_s
        ]

    async def _call_back(
        self,
        going: Sequence[str],
        now_s: float,
        list_pods: Callable[[], Awaitable[list[PodObject]]],
    ) -> None:
        returning = [name for name in self._sent.to_call_back(now_s) if name not in going]
        if not returning:
            return
        staying = {pod.name for pod in await list_pods() if not pod.is_ending}
        for name in returning:
            pod = self._watch.state.pods.get(name)
            if name in staying and pod is not None:
                logger.info("pod stays", extra={"pod": name})
                await self._set_phase(pod, PodPhase.READY)
                self._sent.call_back(name)

    async def _set_phase(self, pod: PodState, phase: PodPhase) -> None:
        with suppress(LeaseLost):  # it is gone already
            await self._watch.registry.set_phase(pod.name, pod.epoch, phase)


def _is_done(pod: PodState) -> bool:
    return pod.phase is PodPhase.DRAINING and not pod.slots_busy and not pod.inferring
