"""The autoscaler's loop: renew the leader's lease, read the registry, forecast, plan, act.

An error in one tick does not end the loop: the next tick starts from the registry again. An
autoscaler that is not the leader reads and plans too, so that it can take over at once.
"""

import asyncio
import logging
import time
from collections import Counter
from functools import partial
from typing import Any, Final

from autoscaler.act import ActionExecutor, Actuator, PoolSize, RegistryActuator
from autoscaler.forecast import DemandForecaster
from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.metrics import AutoscalerMetrics
from autoscaler.observe import BackgroundForecast, DemandReader
from autoscaler.place import PlacementService
from autoscaler.placement.placement_input import RECENT_S
from autoscaler.plan import Planner, RatePublication, TickPlan
from autoscaler.planning.desired_pods import PodUse, ScalingParams, ScalingState, pod_uses
from autoscaler.planning.policy import DrainPod, LoadingPolicy, SetPods
from autoscaler.planning.pool_view import Limits, Observations, copy_uses
from autoscaler.settings import AutoscalerSettings
from registry.domain.model import name_of_key
from registry.domain.records import POOL, ActionOutcome, ActionRecord, WantedPods
from registry.errors import RegistryUnavailable
from registry.inference_service.tenant_rules import Quota
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.reports import ArrivalHints, ArrivalLog, read_copy_reports
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
        self._arrivals = ArrivalLog(watch.registry)
        self._hints = ArrivalHints(watch.registry)
        self._observed = observed = ObservedDemand(Counts(), time_scale=settings.pace)
        self._demand_reader = DemandReader(watch.registry, observed)
        self._forecast = BackgroundForecast(
            observed,
            forecaster or DemandForecaster(is_partial=not policy.reads_history),
            metrics,
            interval_s=forecast_every_s,
        )
        params = ScalingParams(stable_s=settings.pod_stable, idle_s=settings.pod_idle)
        self._planner = Planner(policy, observed, self._forecast, params)
        self._rates = RatePublication()
        self._placement = PlacementService(settings, log, metrics)
        self._policy = policy
        self._metrics = metrics
        self._holder = holder
        self._last_wanted: WantedPods | None = None
        """The last record read, kept in case the registry loses its data and pod registrations."""
        self._is_leading = False
        self._leading_since_s = 0.0
        self._reported_contradictions: dict[str, str] = {}

    async def run(self, executor: ActionExecutor) -> None:
        await self._watch.wait_synced()
        try:
            await self._run(executor)
        finally:
            self._placement.close()

    async def _run(self, executor: ActionExecutor) -> None:
        is_away = False
        while True:
            try:
                await self._tick(executor)
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

    async def _tick(self, executor: ActionExecutor) -> None:
        token = await self._log.acquire_lead(
            self._holder,
            ttl_s=self._lease_s,
            loading=self._policy.name,
            placement=self._settings.placement,
        )
        self._set_leading(is_leading=token is not None)
        if self._watch.age_s() > _MAX_COPY_AGE_S:
            self._metrics.failures.labels("stale-copy").inc()
            return
        plan = await self.plan(executor)
        if token is None:
            return
        await self._report_contradictions(plan, token)
        await self._scale(plan, token)
        await self._publish_rates(plan, token)
        executor.start(plan.actions, token)
        recent = self._observed.recent_rates(RECENT_S)
        await self._placement.tick(self._watch.state, plan.view, recent, token)

    def _set_leading(self, *, is_leading: bool) -> None:
        if not (is_leading and self._is_leading):
            # Start from the registry's record, which another leader may have written.
            self._planner.scaling = None
            self._leading_since_s = time.monotonic()
        self._is_leading = is_leading
        self._metrics.is_leader.set(int(is_leading))
        self._actuator.set_leading(is_leading=is_leading)

    async def plan(self, executor: ActionExecutor | None = None) -> TickPlan:
        """Make a plan for the pool as it is now. Raises RegistryUnavailable."""
        now_s = self._watch.registry_now_s()
        ongoing, waiting, reports, hints, _ = await asyncio.gather(
            self._log.ongoing(),
            self._arrivals.queue_stats(),
            read_copy_reports(self._watch.registry),
            self._hints.read(),
            self._demand_reader.read(now_s, sorted(self._watch.state.models)),
        )
        size = self._actuator.size()
        self._update_scaling(size, ongoing.wanted)
        started_s = time.perf_counter()
        plan = self._planner.plan(
            self._watch.state,
            now_s,
            Observations(waiting=waiting, uses=copy_uses(self._watch.state, reports)),
            limits=None if size is None else self._limits(size),
            ongoing=ongoing.actions,
            paused=executor.backoff.paused(now_s) if executor else frozenset(),
            hints=hints,
            quota_of=partial(self._actuator.rules().quota, kind=Quota.MEMORY),
        )
        self._metrics.plan_seconds.observe(time.perf_counter() - started_s)
        if plan.failure is not None:
            self._metrics.failures.labels("policy").inc()
            logger.error(
                "the loading policy failed",
                exc_info=plan.failure,
                extra={"policy": self._policy.name},
            )
        uses = Counter(pod_uses(plan.view).values())
        for use in PodUse:
            self._metrics.pods.labels(use).set(uses[use])
        return plan

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
        await self._forecast.wait()

    async def _scale(self, plan: TickPlan, token: int) -> None:
        """Record the wanted number of pods, then pass it to the actuator."""
        action = next((each for each in plan.actions if isinstance(each, SetPods)), None)
        if action is None:
            return
        leaving = tuple(each.pod for each in plan.actions if isinstance(each, DrainPod))
        record = ActionRecord(
            "scale",
            POOL,
            str(action.reason),
            f"{action.pods} pods: {action.detail}",
            plan.view.time_s,
            outcome=ActionOutcome.DONE,
        )
        wanted = WantedPods(action.shapes, leaving)
        try:
            is_recorded = await self._log.set_wanted_pods(token, wanted, record)
        except RegistryUnavailable:
            self._planner.scaling = None  # it may have been recorded: read the record again
            raise
        if not is_recorded:
            self._planner.scaling = None
            return
        self._actuator.scale_to(wanted)
        self._metrics.wanted_pods.set(action.pods)
        self._metrics.actions.labels("scale", action.reason, ActionOutcome.DONE).inc()
        logger.info(
            "scale",
            extra={
                "pods": action.pods,
                "reason": str(action.reason),
                "words": action.detail,
                "leaving": leaving,
            },
        )

    async def _publish_rates(self, plan: TickPlan, token: int) -> None:
        """Publish expected arrivals to gateways; a restarted autoscaler overwrites them at once."""
        now_s = self._watch.registry_now_s()
        rates = self._rates.next_rates(plan.view, now_s, time_scale=self._settings.pace)
        if rates is not None:
            await self._log.publish_expected_rates(token, rates)

    async def _report_contradictions(self, plan: TickPlan, token: int) -> None:
        """Record contradictory limits, once per model and text."""
        found = plan.contradictions
        for key, text in found.items():
            if self._reported_contradictions.get(key) != text:
                record = ActionRecord(
                    "refuse",
                    str(name_of_key(key)),
                    "limits",
                    text,
                    plan.view.time_s,
                    outcome=ActionOutcome.FAILED,
                    error=text,
                )
                extra = {"model": record.subject, "why": text}
                logger.warning("limits contradict each other", extra=extra)
                await self._log.begin_action(token, record, ttl_s=0.001)
                self._metrics.actions.labels("refuse", "limits", ActionOutcome.FAILED).inc()
        self._reported_contradictions = found
