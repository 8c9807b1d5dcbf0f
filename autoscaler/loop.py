"""The autoscaler's loop: lead, observe, forecast, plan, act, twice a second.

An error in one tick does not end the loop: the next tick starts from the registry again. An
autoscaler that is not the leader reads and plans too, so that it can take over at once.
"""

import asyncio
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from autoscaler.act import ActionExecutor, Actuator, PoolSize, RegistryActuator
from autoscaler.desired_pods import PodUse, ScalingParams, ScalingState, pod_uses
from autoscaler.forecast import DemandForecaster, Forecasts, ImpossibleForecast
from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.metrics import AutoscalerMetrics
from autoscaler.observe import Observer
from autoscaler.place import PlacementService
from autoscaler.placement.placement_input import RECENT_S
from autoscaler.plan import Planner, TickPlan
from autoscaler.policy import Limits, LoadingPolicy
from autoscaler.settings import AutoscalerSettings
from registry.domain.records import WantedPods
from registry.domain.tenant_rules import UNKNOWN, Quota
from registry.errors import RegistryUnavailable
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

_MAX_COPY_AGE_S: Final = 3.0
"""No plan is made from a copy of the registry older than this."""
TICK_S: Final = 0.5
"""Between two plans: a part of the time that most loads take."""
LEASE_S: Final = 5.0
"""Time after which another autoscaler takes over from a leader that stopped, and for pods to
register again after the registry lost its data: ten ticks, five heartbeats."""
FORECAST_EVERY_S: Final = 2.0
"""Between two forecasts, which take longer than a plan and change slower."""


class Autoscaler:
    """One autoscaler. Owned by the event loop."""

    def __init__(
        self,
        settings: AutoscalerSettings,
        watch: ClusterWatch,
        log: AutoscalerLog,
        policy: LoadingPolicy[Any],
        metrics: AutoscalerMetrics,
        holder: str,
        forecaster: DemandForecaster | None = None,
        actuator: Actuator | None = None,
        *,
        tick_s: float = TICK_S,
        lease_s: float = LEASE_S,
        forecast_every_s: float = FORECAST_EVERY_S,
    ) -> None:
        self._tick_s = tick_s
        self._lease_s = lease_s
        self._settings = settings
        self._actuator = actuator or RegistryActuator(settings)
        self._watch = watch
        self._log = log
        self._policy = policy
        self._metrics = metrics
        self._holder = holder
        self._arrivals = ObservedDemand(Counts(), time_scale=settings.pace)
        self._observer = Observer(watch, log, self._arrivals)
        self._thread = ThreadPoolExecutor(1, "forecast")
        self._forecasts = Forecasts(
            self._arrivals,
            forecaster or DemandForecaster(is_partial=not policy.reads_history),
            interval_s=forecast_every_s,
            submit=self._thread.submit,
            clock_s=time.perf_counter,
            report=self._report_forecast,
        )
        params = ScalingParams(stable_s=settings.pod_stable, idle_s=settings.pod_idle)
        self._planner = Planner(policy, params)
        self._placement = PlacementService(settings, log, metrics)
        self._last_wanted: WantedPods | None = None
        """The last record read, kept in case the registry loses its data and pod registrations."""
        self._is_leading = False
        self._leading_since_s = 0.0

    async def run(self, executor: ActionExecutor) -> None:
        await self._watch.wait_synced()
        try:
            await self._run(executor)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, executor: ActionExecutor) -> None:
        is_away = False
        while True:
            try:
                await self.tick(executor)
                is_away = False
            except RegistryUnavailable as error:
                self._metrics.failures.labels("registry-away").inc()
                self._set_leading(is_leading=False)
                if not is_away:
                    logger.warning(
                        "the registry is unavailable; no plans until it is back",
                        extra={"error": error},
                    )
                is_away = True
            except Exception:
                self._metrics.failures.labels("tick").inc()
                logger.exception("a tick failed; the next one starts from the registry")
            await asyncio.sleep(self._tick_s)

    async def tick(self, executor: ActionExecutor) -> None:
        """Raises RegistryUnavailable."""
        token = await self._lead()
        if self._watch.age_s() > _MAX_COPY_AGE_S:
            self._metrics.failures.labels("stale-copy").inc()
            return
        is_recorded = False
        try:
            plan = await self.plan(executor)
            is_recorded = token is None or await executor.carry_out(plan, token)
        finally:
            if not is_recorded:
                self._planner.scaling = None  # read the record again
        if token is None:
            return
        recent = self._arrivals.recent_rates(RECENT_S)
        await self._placement.tick(self._watch.state, plan.view, recent, token)

    async def plan(self, executor: ActionExecutor | None = None) -> TickPlan:
        """Observe, forecast and plan, without any action. Raises RegistryUnavailable."""
        now_s, size = self._watch.registry_now_s(), self._actuator.size()
        seen = await self._observer.observe(
            now_s,
            limits=None if size is None else self._limits(size),
            paused=executor.backoff.paused(now_s) if executor else (),
        )
        self._update_scaling(size, seen.wanted)
        started_s = time.perf_counter()
        demand = self._forecasts.demand(seen.names, now_s, seen.hints)
        quota_of = partial((self._watch.state.rules or UNKNOWN).quota, kind=Quota.MEMORY)
        plan = self._planner.plan(replace(seen, demand=demand), quota_of=quota_of)
        self._measure(plan, time.perf_counter() - started_s)
        return plan

    async def _lead(self) -> int | None:
        """Take or renew the lead; None: another autoscaler has it."""
        token = await self._log.acquire_lead(
            self._holder,
            ttl_s=self._lease_s,
            loading=self._policy.name,
            placement=self._settings.placement,
        )
        self._set_leading(is_leading=token is not None)
        return token

    def _set_leading(self, *, is_leading: bool) -> None:
        if not (is_leading and self._is_leading):
            # Start from the registry's record, which another leader may have written.
            self._planner.scaling = None
            self._placement.start_over()
            self._leading_since_s = time.monotonic()
        self._is_leading = is_leading
        self._metrics.is_leader.set(int(is_leading))
        self._actuator.set_leading(is_leading=is_leading)

    def _measure(self, plan: TickPlan, seconds: float) -> None:
        self._metrics.plan_seconds.observe(seconds)
        if plan.failure is not None:
            self._metrics.failures.labels("policy").inc()
            extra = {"policy": self._policy.name}
            logger.error("the loading policy failed", exc_info=plan.failure, extra=extra)
        uses = Counter(pod_uses(plan.view).values())
        for use in PodUse:
            self._metrics.pods.labels(use).set(uses[use])

    def _report_forecast(self, took_s: float, error: Exception | None) -> None:
        self._metrics.forecast_seconds.observe(took_s)
        if isinstance(error, ImpossibleForecast):
            self._metrics.failures.labels("absurd-forecast").inc()
            logger.warning("the forecast has impossible numbers; plans are made without it")
        elif error is not None:
            self._metrics.failures.labels("forecast").inc()
            logger.error("the forecast failed; plans are made without it", exc_info=error)

    def _limits(self, size: PoolSize) -> Limits:
        """The bounds of the pool; with a placement on a cluster it keeps all pods for the plan."""
        largest = size.limits.max_pods
        if self._settings.kubernetes and self._settings.placement != "off" and largest is not None:
            return Limits(largest, largest)
        return size.limits

    def _update_scaling(self, size: PoolSize | None, wanted: WantedPods | None) -> None:
        """Set the planner's scaling state; None disables planning of the number of pods.

        Planning starts from the actuator's number of pods or, without one, from the registry's
        record. If the registry has lost its record, planning starts from the last one read, or else
        after one lease, in which running pods register.
        """
        self._last_wanted = last = wanted or self._last_wanted
        if size is None:
            self._planner.scaling = None
        elif self._planner.scaling is not None and wanted is not None:
            return
        elif size.pods is None and wanted is not None:
            self._planner.scaling = ScalingState(current=wanted.pods)
        elif size.pods is None and last is not None:
            self._planner.scaling = ScalingState(existing=last.pods)
        elif size.pods is None and time.monotonic() - self._leading_since_s < self._lease_s:
            self._planner.scaling = None
        else:
            self._planner.scaling = ScalingState(existing=size.pods)

    async def wait_forecast(self) -> None:
        """Return when the forecast in progress is finished."""
        if self._forecasts.running is not None:
            await asyncio.wrap_future(self._forecasts.running)
