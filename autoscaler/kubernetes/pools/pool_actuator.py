"""Has a pool's Deployment at the number of pods that the leading autoscaler wants.

It looks at the cluster while it leads only, every few seconds and whenever something is wanted
anew. Pods that are to go first finish what they have: the registry is told that they drain, and
the number falls once they are idle, with the lowest cost on them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from autoscaler.kubernetes.errors import Changed, Gone, KubernetesError, PoolNotFound
from autoscaler.kubernetes.pools.draining import PodDrain
from autoscaler.kubernetes.pools.pool_size import (
    Owner,
    ScaledElsewhere,
    ScaleTo,
    deletion_costs,
    within_bounds,
)
from autoscaler.kubernetes.pools.scale_conflict import ScaleConflict
from autoscaler.planning.pool_view import Limits
from autoscaler.service.actuator import PoolSize
from registry.domain.model import ModelName
from registry.errors import RegistryError

if TYPE_CHECKING:
    from autoscaler.kubernetes.cluster.cluster_api import ClusterApi
    from autoscaler.kubernetes.pools.pool_scaler import ObservedPool, PoolScaler
    from autoscaler.service.metrics import AutoscalerMetrics
    from registry.domain.action_log import WantedPods
    from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 3.0
RETRY_S: Final = 0.2
"""After an object changed between the look and the change."""


class PoolActuator:
    """One pool's. `run` is its one task; the rest is called by the autoscaler's loop."""

    def __init__(
        self,
        pool: str,
        scaler: PoolScaler,
        api: ClusterApi,
        watch: ClusterWatch,
        metrics: AutoscalerMetrics,
        *,
        lease_s: float,
        drain_s: float,
    ) -> None:
        self._pool = pool
        self._scaler = scaler
        self._api = api
        self._watch = watch
        self._metrics = metrics
        self._lease_s = lease_s
        self._draining = PodDrain(watch, drain_s=drain_s)
        self._news = asyncio.Event()
        self._confirmed_s: float | None = None
        self._seen: ObservedPool | None = None
        self._wanted: WantedPods | None = None
        self._contest = ScaleConflict()
        self._told: ScaledElsewhere | None = None
        self._failing = ""

    # What the loop asks and tells

    def size(self) -> PoolSize | None:
        """Bounds and size; None while they are unknown, or somebody else's."""
        seen = self._seen
        if seen is None or seen.owner is not None:
            return None
        return PoolSize(Limits(seen.found.least, seen.found.most), seen.pods)

    def lead(self, *, is_leading: bool) -> None:
        """Begin to look, or cease to act."""
        if is_leading and self._confirmed_s is None:
            self._news.set()
        if not is_leading:
            self._seen = self._wanted = None
            self._contest = ScaleConflict()
            self._show(None)
        self._confirmed_s = time.monotonic() if is_leading else None

    def want(self, wanted: WantedPods) -> None:
        """Have so many pods."""
        self._wanted = wanted
        self._news.set()

    # What it does

    async def run(self) -> None:
        """Follow until cancelled."""
        self._watch.subscribe(self._registry_changed)
        while True:
            wait_s = LOOK_EVERY_S
            try:
                await self._step()
                self._failing = ""
            except (KubernetesError, RegistryError) as error:
                wait_s = RETRY_S if isinstance(error, Changed) else LOOK_EVERY_S
                self._note(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            self._news.clear()

    def _registry_changed(self) -> None:
        if self._draining.is_over():
            self._news.set()

    @property
    def _may_act(self) -> bool:
        """Whether the lead was confirmed lately: a process that was stopped has lost it."""
        if self._confirmed_s is None:
            return False
        return time.monotonic() - self._confirmed_s < self._lease_s

    async def _step(self) -> None:
        if not self._may_act:
            return
        seen = await self._scaler.look(self._pool)
        if not self._may_act:
            return
        self._seen = seen
        if seen.owner is not None:
            self._wanted, self._contest = None, ScaleConflict()
        owner = seen.owner or self._contest.look(seen.pods, time.monotonic())
        await self._tell_owner(seen, owner)
        await self._follow(seen, None if owner is not None else self._wanted)

    async def _follow(self, seen: ObservedPool, wanted: WantedPods | None) -> None:
        scale = ScaleTo(seen.pods, "") if wanted is None else within_bounds(seen.found, wanted.pods)
        leaving = await self._draining.follow(
            () if wanted is None else wanted.leaving,
            pods=scale.pods,
            list_pods=lambda: self._scaler.list_pods(seen),
        )
        if wanted is None or scale.pods == seen.pods or leaving is None or not self._may_act:
            return
        if scale.pods < seen.pods:
            await self._scaler.rank(seen, deletion_costs(self._watch.state.pods, leaving))
        self._contest.expect(None)  # whether it was set is unknown until there is an answer
        await self._scaler.set_pods(seen, scale.pods)
        self._contest.expect(scale.pods)
        note = f"; {scale.note}" if scale.note else ""
        await self._tell(
            seen, "Scaled", f"from {seen.pods} to {scale.pods} pods{note}", is_warning=False
        )

    async def _tell_owner(self, seen: ObservedPool, owner: ScaledElsewhere | None) -> None:
        """Say in log, metric and event whose the number of pods is, once for each change."""
        self._show(owner)
        if owner == self._told:
            return
        self._told = owner
        if owner is None:
            logger.info("the pool's size is ours", extra={"pool": self._pool})
            return
        logger.warning("pool left alone", extra={"pool": self._pool, "reason": owner.reason})
        await self._tell(seen, "ScalingLeftAlone", owner.reason, is_warning=True)

    def _show(self, owner: ScaledElsewhere | None) -> None:
        for each in Owner:
            self._metrics.left_alone.labels(each).set(owner is not None and owner.owner is each)

    async def _tell(
        self, seen: ObservedPool, reason: str, message: str, *, is_warning: bool
    ) -> None:
        name = ModelName(seen.found.namespace, seen.found.name)
        await self._api.tell(
            name, seen.found.uid, reason=reason, message=message, is_warning=is_warning
        )

    def _note(self, error: Exception) -> None:
        """Count a failure, and log it when it is another one than before."""
        if isinstance(error, Gone | PoolNotFound):
            self._seen = None  # there is nothing to plan for
        self._metrics.failures.labels("cluster").inc()
        if not isinstance(error, Changed) and str(error) != self._failing:
            self._failing = str(error)
            logger.warning("the pool cannot be scaled now", exc_info=error)
