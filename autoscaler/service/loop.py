"""The autoscaler: keep the lead, read, forecast, plan, act, over and over.

Nothing that goes wrong in one tick ends it: the next tick starts from the registry again. Who does
not lead reads along, so that it can take over at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoscaler.planning.actions import DrainPod, SetPods
from autoscaler.planning.pod_use import PodUse, pod_uses
from autoscaler.planning.pool_snapshot import Observations, read_pool
from autoscaler.planning.pool_view import Limits, QueueDemand
from autoscaler.planning.time_scale import at_pace
from autoscaler.scaling.limits import contradictions
from autoscaler.scaling.pods import ScalingParams, ScalingState, scale_pods
from autoscaler.service.actuator import RegistryActuator
from autoscaler.service.demand import DemandReader
from autoscaler.service.forecaster import DemandForecaster, is_sound
from autoscaler.service.views import with_intents, without_refusers
from registry.domain.action_log import POOL, ActionOutcome, ActionRecord, WantedPods
from registry.domain.model import name_of_key
from registry.errors import RegistryUnavailable
from registry.redis.arrivals import ArrivalLog

if TYPE_CHECKING:
    from autoscaler.planning.actions import Action
    from autoscaler.planning.policy import LoadingPolicy
    from autoscaler.planning.pool_view import Demand, PoolView
    from autoscaler.service.actuator import Actuator, PoolSize
    from autoscaler.service.executor import ActionExecutor
    from autoscaler.service.forecaster import Past
    from autoscaler.service.metrics import AutoscalerMetrics
    from autoscaler.service.settings import AutoscalerSettings
    from registry.redis.autoscaler_log import AutoscalerLog
    from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

_STALE_S: Final = 3.0
"""A copy older than this is not planned by."""


@dataclass(frozen=True, slots=True)
class TickPlan:
    """What one tick would do, and what it rests on."""

    view: PoolView
    actions: tuple[Action, ...]
    refused: dict[str, str]
    """By key: why what a model asks for cannot be had."""


@dataclass(frozen=True, slots=True)
class ForecastResult:
    """A forecast of these models, and how long it took."""

    models: tuple[str, ...]
    demand: Demand | None
    took_s: float


class Autoscaler:
    """One autoscaler. Owned by the event loop."""

    def __init__(
        self,
        settings: AutoscalerSettings,
        watch: ClusterWatch,
        autoscaling: AutoscalerLog,
        policy: LoadingPolicy[Any],
        metrics: AutoscalerMetrics,
        holder: str,
        forecaster: DemandForecaster | None = None,
        owner: Actuator | None = None,
    ) -> None:
        self._settings = settings
        self._owner = owner or RegistryActuator(settings)
        self._watch = watch
        self._autoscaling = autoscaling
        self._arrivals = ArrivalLog(watch.registry)
        self._demand_reader = DemandReader(watch.registry, settings.pace)
        self._policy = policy
        self._state: Any = policy.start
        self._metrics = metrics
        self._holder = holder
        self._demand: Demand | None = None
        self._demand_models: tuple[str, ...] = ()
        self._forecaster = forecaster or DemandForecaster(is_partial=not policy.reads_history)
        self._forecasting: asyncio.Future[ForecastResult] | None = None
        self._forecast_at_s = 0.0
        self._forecast_pause_s = settings.forecast_every
        self._pods: ScalingState | None = None
        self._last_wanted: WantedPods | None = None
        """What the registry said last. One that lost its data does not have all pods yet."""
        self._is_leading = False
        self._leads_since_s = 0.0
        self._told_refused: dict[str, str] = {}

    async def run(self, actor: ActionExecutor) -> None:
        """Tick until cancelled."""
        await self._watch.wait_synced()
        while True:
            try:
                await self._tick(actor)
            except RegistryUnavailable as error:
                self._metrics.failures.labels("registry-away").inc()
                self._lead(is_leading=False)
                logger.warning("the registry is away; nothing is planned", exc_info=error)
            except Exception:
                self._metrics.failures.labels("tick").inc()
                logger.exception("a plan failed; the next one starts anew")
            await asyncio.sleep(self._settings.tick)

    async def _tick(self, actor: ActionExecutor) -> None:
        token = await self._autoscaling.acquire_lead(self._holder, ttl_s=self._settings.lease)
        self._lead(is_leading=token is not None)
        if self._watch.age_s() > _STALE_S:
            self._metrics.failures.labels("stale-copy").inc()
            return
        plan = await self.plan(actor)
        if token is None:
            return
        await self._tell_refused(plan, token)
        await self._scale(plan, token)
        actor.begin(plan.actions, token)
        self._demand_reader.forget_arrived()

    def _lead(self, *, is_leading: bool) -> None:
        if not (is_leading and self._is_leading):
            self._pods = None  # what is wanted, or was by whoever led before, is read anew
            self._leads_since_s = time.monotonic()
        self._is_leading = is_leading
        self._metrics.is_leader.set(int(is_leading))
        self._owner.lead(is_leading=is_leading)

    async def plan(self, actor: ActionExecutor | None = None) -> TickPlan:
        """What is to be done now. Raises RegistryUnavailable."""
        now_s = self._watch.registry_now_s()
        names = sorted(self._watch.state.models)
        under_way, waiting, _ = await asyncio.gather(
            self._autoscaling.ongoing(),
            self._arrivals.queue_stats(),
            self._demand_reader.read(now_s, names),
        )
        size = self._owner.size()
        self._adopt(size, under_way.wanted)
        started_s = time.perf_counter()
        self._forecast(now_s)
        seen = Observations(
            arrived=self._demand_reader.arrived,
            last_arrival_s=self._demand_reader.last_arrival_s,
            waiting={
                name: QueueDemand(each.requests, each.starved, each.oldest_s)
                for name, each in waiting.items()
            },
        )
        limits = Limits() if size is None else size.limits
        demand = self._demand
        if self._demand_models != tuple(str(name) for name in sorted(self._watch.state.models)):
            demand = None  # rows of other models
        view = read_pool(self._watch.state, now_s, seen, limits=limits, demand=demand)
        view = at_pace(view, self._settings.pace)
        view = with_intents(view, under_way.actions)
        if actor is not None:
            view = without_refusers(view, actor.refusals, now_s)
        plan = self._plan(view)
        self._metrics.plan_seconds.observe(time.perf_counter() - started_s)
        self._count_pods(view)
        return plan

    def _adopt(self, size: PoolSize | None, wanted: WantedPods | None) -> None:
        """Start from the pods there are; forget them where they are not to be planned.

        A registry that lost its data says nothing: what it said last is told anew. Where nobody
        remembers, pods that run may have to register first: they have a lease's time for it.
        """
        self._last_wanted = last = wanted or self._last_wanted
        if size is None:
            self._pods = None
        elif self._pods is not None and wanted is not None:
            return
        elif size.pods is None and wanted is not None:
            self._pods = ScalingState(current=wanted.pods)
        elif size.pods is None and last is not None:
            self._pods = ScalingState(there=last.pods)
        elif size.pods is None and time.monotonic() - self._leads_since_s < self._settings.lease:
            self._pods = None
        else:
            self._pods = ScalingState(there=size.pods)

    def _forecast(self, now_s: float) -> None:
        """Take in a forecast that is ready; begin another one when it is time.

        In a thread: with ten thousand models it takes seconds, and what waits must not wait for it.
        """
        if self._forecasting is not None and self._forecasting.done():
            self._take_forecast(self._forecasting)
            self._forecasting = None
        if self._forecasting is not None:
            return
        texts = tuple(str(name) for name in sorted(self._watch.state.models))
        age_s = now_s - self._forecast_at_s
        if texts == self._demand_models and 0 <= age_s < self._forecast_pause_s:
            return
        self._forecast_at_s = now_s
        reader = self._demand_reader
        due = self._forecaster.due(texts, reader.changed, self._settings.pace * now_s)
        past = reader.past(now_s, texts, due)
        if past is None:
            self._demand, self._demand_models = None, texts
            return
        loop = asyncio.get_running_loop()
        self._forecasting = loop.run_in_executor(None, self._forecast_in_thread, past)

    def _forecast_in_thread(self, past: Past) -> ForecastResult:
        started_s = time.perf_counter()
        demand: Demand | None = None
        try:
            demand = self._forecaster.forecast(past)
        except (ValueError, ArithmeticError, LookupError):
            self._metrics.failures.labels("forecast").inc()
            logger.exception("the forecast failed; planning goes on without")
        if demand is not None and not is_sound(demand):
            self._metrics.failures.labels("absurd-forecast").inc()
            logger.warning("the forecast is absurd; planning goes on without")
            demand = None
        return ForecastResult(past.models, demand, time.perf_counter() - started_s)

    def _take_forecast(self, ready: asyncio.Future[ForecastResult]) -> None:
        forecasted = ready.result()
        self._metrics.forecast_seconds.observe(forecasted.took_s)
        self._demand, self._demand_models = forecasted.demand, forecasted.models
        # A large pool's forecasts shall take a fifth of a core, not all of it.
        self._forecast_pause_s = max(self._settings.forecast_every, 5 * forecasted.took_s)

    async def wait_forecast(self) -> None:
        """Return when the forecast that was begun last is ready."""
        if self._forecasting is not None:
            await asyncio.wait([self._forecasting])

    def _plan(self, view: PoolView) -> TickPlan:
        actions: tuple[Action, ...] = ()
        try:
            actions, self._state = self._policy.plan(view, self._state)
        except Exception:
            self._metrics.failures.labels("policy").inc()
            logger.exception("the loading policy failed", extra={"policy": self._policy.name})
            self._state = self._policy.start
        if self._pods is not None:
            params = ScalingParams(
                stable_s=self._settings.pod_stable, idle_s=self._settings.pod_idle
            )
            scaling, self._pods = scale_pods(view, self._pods, params)
            actions = (*scaling, *actions)
        return TickPlan(view, actions, contradictions(view))

    async def _scale(self, plan: TickPlan, token: int) -> None:
        """Say how many pods are wanted; whoever owns the pods carries it out."""
        wish = next((each for each in plan.actions if isinstance(each, SetPods)), None)
        if wish is None:
            return
        leaving = tuple(each.pod for each in plan.actions if isinstance(each, DrainPod))
        record = ActionRecord(
            "scale", POOL, str(wish.why), f"{wish.pods} pods: {wish.words}",
            plan.view.time_s, outcome=ActionOutcome.DONE,
        )  # fmt: skip
        wanted = WantedPods(wish.pods, leaving)
        try:
            is_told = await self._autoscaling.set_wanted_pods(token, wanted, record)
        except RegistryUnavailable:
            self._pods = None  # perhaps it was told: ask again
            raise
        if not is_told:
            self._pods = None
            return
        self._owner.want(wanted)
        self._metrics.wanted_pods.set(wish.pods)
        self._metrics.actions.labels("scale", wish.why, ActionOutcome.DONE).inc()
        logger.info("scale", extra={"pods": wish.pods, "reason": str(wish.why),
                                    "words": wish.words, "leaving": leaving})  # fmt: skip

    async def _tell_refused(self, plan: TickPlan, token: int) -> None:
        """Say once of each model that its limits contradict each other or the pool's."""
        for key, text in plan.refused.items():
            if self._told_refused.get(key) != text:
                record = ActionRecord(
                    "refuse", str(name_of_key(key)), "limits", text, plan.view.time_s,
                    outcome=ActionOutcome.FAILED, error=text,
                )  # fmt: skip
                logger.warning("limits contradict", extra={"model": record.subject, "why": text})
                await self._autoscaling.begin_action(token, record, ttl_s=0.001)
                self._metrics.actions.labels("refuse", "limits", ActionOutcome.FAILED).inc()
        self._told_refused = plan.refused

    def _count_pods(self, view: PoolView) -> None:
        uses = list(pod_uses(view).values())
        for use in PodUse:
            self._metrics.pods.labels(use).set(uses.count(use))
