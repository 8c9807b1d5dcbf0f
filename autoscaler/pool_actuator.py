"""Keeps a pool's Deployment at the number of pods that the leading autoscaler wants.

Where another scaler owns the Deployment, all is done but the write of its replicas: pods drain,
their deletion costs say which may go, and then the number is the advice that others may read.

Reads the cluster only while its autoscaler leads: every few seconds and after each new target. To
scale down it drains the pods that leave, gives them the lowest deletion cost, and lowers the number
of replicas once they are idle.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Final

from autoscaler.act import PoolSize
from autoscaler.metrics import AutoscalerMetrics
from autoscaler.policy import Limits
from controller.api import Changed, ClusterApi, Gone, KubernetesError, PoolNotFound
from controller.pool_scaler import ObservedPool, PoolScaler
from controller.pool_size import (
    DrainTracker,
    Owner,
    ScaledElsewhere,
    ScaleTo,
    deletion_costs,
    pods_to_drain,
    within_bounds,
)
from controller.resources import PodObject
from registry.domain.model import ModelName
from registry.domain.pod import PodPhase
from registry.domain.pod_state import PodState
from registry.domain.pool_demand import PoolAdvice
from registry.domain.records import WantedPods
from registry.errors import LeaseLost, RegistryError
from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 3.0
COSTS_INTERVAL_S: Final = 30.0
"""Between two writes of deletion costs where another scaler owns the pool."""
RETRY_S: Final = 0.2
"""Delay after an object changed between read and write."""


DRAIN_S: Final = 300.0
"""Time for a leaving pod to finish its requests: what Knative allows one by default
(revision-timeout-seconds)."""


class PoolActuator:
    """An `Actuator` for one pool. `run` is its only task; the autoscaler's loop calls the rest."""

    def __init__(
        self,
        pool: str,
        scaler: PoolScaler,
        api: ClusterApi,
        watch: ClusterWatch,
        metrics: AutoscalerMetrics,
        *,
        lease_s: float,
    ) -> None:
        self._pool = pool
        self._scaler = scaler
        self._api = api
        self._watch = watch
        self._metrics = metrics
        self._lease_s = lease_s
        self._drain = PodDrain(watch)
        self._wake = asyncio.Event()
        self._lead_confirmed_s: float | None = None
        self._observed: ObservedPool | None = None
        self._target: WantedPods | None = None
        self._advice: PoolAdvice | None = None
        self._costs_set_s = -inf
        self._reported_owner: ScaledElsewhere | None = None
        self._last_error = ""

    # Called by the autoscaler's loop

    def size(self) -> PoolSize | None:
        """Bounds and size; None while they are unknown, or the pool has no Deployment to scale."""
        observed = self._observed
        if observed is None or not observed.has_scale:
            return None
        bounds = observed.service
        return PoolSize(Limits(bounds.min_pods, bounds.max_pods), observed.pods)

    def set_leading(self, *, is_leading: bool) -> None:
        if is_leading and self._lead_confirmed_s is None:
            self._wake.set()
        if not is_leading:
            self._observed = self._target = self._advice = None
            self._set_owner_metric(None)
        self._lead_confirmed_s = time.monotonic() if is_leading else None

    def scale_to(self, target: WantedPods) -> None:
        self._target = target
        self._wake.set()

    def advice(self) -> PoolAdvice | None:
        return self._advice

    # The task

    async def run(self) -> None:
        self._watch.subscribe(self._on_registry_change)
        while True:
            wait_s = POLL_INTERVAL_S
            try:
                await self._step()
                self._last_error = ""
            except (KubernetesError, RegistryError) as error:
                wait_s = RETRY_S if isinstance(error, Changed) else POLL_INTERVAL_S
                self._record_failure(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()

    def _on_registry_change(self) -> None:
        if self._drain.is_done():
            self._wake.set()

    @property
    def _may_act(self) -> bool:
        """True if the lead was confirmed within the lease; a longer suspension loses the lead."""
        if self._lead_confirmed_s is None:
            return False
        return time.monotonic() - self._lead_confirmed_s < self._lease_s

    async def _step(self) -> None:
        if not self._may_act:
            return
        observed = await self._scaler.observe(self._pool)
        if not self._may_act:
            return
        self._observed = observed
        if not observed.has_scale:
            self._target = self._advice = None
        await self._report_owner(observed)
        await self._apply(observed, self._target)

    async def _apply(self, observed: ObservedPool, target: WantedPods | None) -> None:
        """Drain the pods that leave, then scale; cancel all drains if there is no target."""
        if target is None:
            scale = ScaleTo(observed.pods, "")
        else:
            scale = within_bounds(observed.service, target.pods)
        leaving = await self._drain.update(
            () if target is None else target.leaving,
            pods=scale.pods,
            list_pods=lambda: self._scaler.list_pods(observed),
        )
        if target is None or not self._may_act:
            return
        if leaving is None:
            self._advise(observed, max(scale.pods, observed.pods))
            return
        await self._set_deletion_costs(observed, scale.pods, leaving)
        if not self._may_act:
            return
        self._advise(observed, scale.pods)
        if scale.pods == observed.pods or observed.owner is not None:
            return
        await self._scaler.set_pods(observed, scale.pods)
        note = f"; {scale.note}" if scale.note else ""
        message = f"from {observed.pods} to {scale.pods} pods{note}"
        await self._post_event(observed, "Scaled", message, is_warning=False)

    def _advise(self, observed: ObservedPool, pods: int) -> None:
        self._advice = PoolAdvice(pods, observed.service.namespace)

    async def _set_deletion_costs(
        self, observed: ObservedPool, pods: int, leaving: Sequence[str]
    ) -> None:
        """Before pods go; another scaler may remove some at any time."""
        now_s = time.monotonic()
        is_due = observed.owner is not None and now_s - self._costs_set_s > COSTS_INTERVAL_S
        if pods < observed.pods or is_due:
            costs = deletion_costs(self._watch.state.pods, leaving)
            await self._scaler.set_deletion_costs(observed, costs)
            self._costs_set_s = now_s

    async def _report_owner(self, observed: ObservedPool) -> None:
        """Report in metric, log and event who scales the pool; log and event once per change."""
        owner = observed.owner
        self._set_owner_metric(owner)
        if owner == self._reported_owner:
            return
        if owner is None:
            logger.info("the autoscaler scales the pool", extra={"pool": self._pool})
        else:
            extra = {"pool": self._pool, "reason": owner.reason}
            logger.warning("the autoscaler does not scale the pool", extra=extra)
            is_odd = owner.owner is not Owner.COMPETING_SCALER
            await self._post_event(observed, "ScalingLeftAlone", owner.reason, is_warning=is_odd)
        self._reported_owner = owner  # after the event: one that could not be posted is tried again

    def _set_owner_metric(self, owner: ScaledElsewhere | None) -> None:
        for each in Owner:
            is_owner = owner is not None and owner.owner is each
            self._metrics.scaled_elsewhere.labels(each).set(is_owner)

    async def _post_event(
        self, observed: ObservedPool, reason: str, message: str, *, is_warning: bool
    ) -> None:
        service = observed.service
        await self._api.post_event(
            ModelName(service.namespace, service.name),
            service.uid,
            reason=reason,
            message=message,
            is_warning=is_warning,
            kind=service.reference,
        )

    def _record_failure(self, error: Exception) -> None:
        """Count a failure; log it unless it is the same as the last one."""
        if not isinstance(error, Changed):
            self._advice = None  # what was advised may be wrong by now
        if isinstance(error, Gone | PoolNotFound):
            self._observed = None  # no pool to plan for
        self._metrics.failures.labels("cluster").inc()
        if not isinstance(error, Changed) and str(error) != self._last_error:
            self._last_error = str(error)
            logger.warning("the pool could not be scaled; retrying", exc_info=error)


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
