"""Fourth step of a tick: records each action of the plan, calls the pod, records the outcome.

An action that is in progress, also one of an earlier leader, is not started again. A pod or an
action that failed is paused, longer after each failure. Nothing here decides what to do.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from autoscaler.metrics import AutoscalerMetrics
from autoscaler.plan import RatePublication, TickPlan
from autoscaler.policy import Action, Demote, DrainPod, Limits, Load, SetPods
from autoscaler.settings import AutoscalerSettings
from common.backoff import KeyedBackoff
from common.pod_client import PodClient, PodRefused
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier, name_of_key
from registry.domain.pool_demand import PoolAdvice
from registry.domain.records import POOL, ActionOutcome, ActionRecord, WantedPods
from registry.errors import RegistryUnavailable
from registry.redis.reports import AutoscalerLog, BeginResult

logger = logging.getLogger(__name__)

INTENT_TTL_S: Final = 10.0
"""Lifetime of the record of a started action; by then a load has its pod's own claim."""
ADVISE_INTERVAL_S: Final = 3.0
MAX_CONCURRENT: Final = 128

ModelAction = Load | Demote


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Bounds and current size of a pool."""

    limits: Limits
    pods: int | None = None
    """Pods that the actuator last set; None: the registry has the number."""


class Actuator(Protocol):
    """What starts and stops a pool's pods, called at every tick.

    On one machine the platform reads the wanted number from the registry
    (`pilotlight/platform/pod_processes.py`); on a cluster there is `pool_actuator.py`.
    """

    def size(self) -> PoolSize | None:
        """Bounds and size; None: the number of pods must not be planned now."""

    def set_leading(self, *, is_leading: bool) -> None:
        """Set whether this autoscaler leads."""

    def scale_to(self, target: WantedPods) -> None:
        """Called by the leader only, after the registry has recorded the target."""

    def advice(self) -> PoolAdvice | None:
        """The number of pods that other scalers should set; None: not known yet."""


class RegistryActuator:
    """For pods that follow the registry's record; bounds come from the settings."""

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._size: PoolSize | None = None
        self._advice: PoolAdvice | None = None
        if settings.min_pods is not None or settings.max_pods is not None:
            self._size = PoolSize(Limits(settings.min_pods or 0, settings.max_pods))

    def size(self) -> PoolSize | None:
        return self._size

    def set_leading(self, *, is_leading: bool) -> None:
        """Does nothing: pods follow the registry's record, whichever autoscaler wrote it."""

    def scale_to(self, target: WantedPods) -> None:
        """The target is in the record already."""
        self._advice = PoolAdvice(target.pods)

    def advice(self) -> PoolAdvice | None:
        return self._advice


class ActionExecutor:
    """Runs actions as tasks of the given group. Owned by the event loop."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        log: AutoscalerLog,
        pods: PodClient,
        metrics: AutoscalerMetrics,
        actuator: Actuator,
        *,
        state: Callable[[], ClusterState],
        now_s: Callable[[], float],
        pace: float = 1.0,
    ) -> None:
        """`pace`: of the clock of forecasts, over the registry's."""
        self._group = group
        self._log = log
        self._pods = pods
        self._metrics = metrics
        self._actuator = actuator
        self._pace = pace
        self._rates = RatePublication()
        self._advised: PoolAdvice | None = None
        self._contradictions: dict[str, str] = {}
        """Those that are reported."""
        self._state = state
        self._now_s = now_s
        self._ongoing: set[str] = set()
        self.backoff = KeyedBackoff()
        """Keys are names of pods and ids of actions."""

    async def carry_out(self, plan: TickPlan, token: int) -> bool:
        """Record what the plan wants, publish its rates, and start its loads and demotions.

        False if another leads, by whom the number of pods may have changed. Raises
        RegistryUnavailable.
        """
        await self._report_contradictions(plan, token)
        is_leading = await self._scale(plan, token)
        await self._advise(token)
        rates = self._rates.next_rates(plan.view, self._now_s(), time_scale=self._pace)
        if rates is not None:
            await self._log.publish_expected_rates(token, rates)
        self.start(plan.actions, token)
        return is_leading

    async def _report_contradictions(self, plan: TickPlan, token: int) -> None:
        """Record contradictory limits, once per model and text."""
        found = plan.contradictions
        for key, text in found.items():
            if self._contradictions.get(key) == text:
                continue
            model, at_s = str(name_of_key(key)), plan.view.time_s
            outcome = ActionOutcome.FAILED
            record = ActionRecord(
                "refuse", model, "limits", text, at_s, outcome=outcome, error=text
            )
            logger.warning("limits contradict each other", extra={"model": model, "why": text})
            await self._log.begin_action(token, record, ttl_s=0.001)
            self._metrics.actions.labels("refuse", "limits", outcome).inc()
        self._contradictions = found

    async def _scale(self, plan: TickPlan, token: int) -> bool:
        """Record the wanted number of pods, then pass it to the actuator; False: another leads."""
        action = next((each for each in plan.actions if isinstance(each, SetPods)), None)
        if action is None:
            return True
        leaving = tuple(each.pod for each in plan.actions if isinstance(each, DrainPod))
        wanted = WantedPods(action.shapes, leaving)
        reason, outcome = str(action.reason), ActionOutcome.DONE
        detail = f"{action.pods} pods: {action.detail}"
        record = ActionRecord("scale", POOL, reason, detail, plan.view.time_s, outcome=outcome)
        if not await self._log.set_wanted_pods(token, wanted, record):
            return False
        self._actuator.scale_to(wanted)
        self._metrics.wanted_pods.set(action.pods)
        self._metrics.actions.labels("scale", reason, outcome).inc()
        words = {"reason": reason, "words": action.detail, "leaving": leaving}
        logger.info("scale", extra={"pods": action.pods, **words})
        return True

    async def _advise(self, token: int) -> None:
        """Publish the advice when it changes, and again before it is too old."""
        advice, known, now_s = self._actuator.advice(), self._advised, self._now_s()
        if advice is None:
            return
        if (
            known is None
            or advice != replace(known, at_s=0.0)
            or not 0 <= now_s - known.at_s < ADVISE_INTERVAL_S
        ):
            self._advised = replace(advice, at_s=now_s)
            await self._log.advise(token, self._advised)

    def start(self, actions: Iterable[Action], token: int) -> None:
        """Start those that are possible, not in progress and not paused."""
        for action in actions:
            if not isinstance(action, Load | Demote):
                continue
            record = record_of(action, self._now_s())
            if cause := self._skip_cause(action, record):
                self._metrics.skipped.labels(record.verb, cause).inc()
                continue
            self._ongoing.add(record.id)
            self._group.create_task(self._run(action, record, token))

    def _skip_cause(self, action: ModelAction, record: ActionRecord) -> str:
        """Why not to start an action, a metric label; empty: start it."""
        if action.pod not in self._state().pods:
            return "pod-gone"
        if record.id in self._ongoing:
            return "under-way"
        if len(self._ongoing) >= MAX_CONCURRENT:
            return "too-many"
        now_s = self._now_s()
        if any(self.backoff.is_paused(key, now_s) for key in (action.pod, record.id)):
            return "refused"
        holder = self._state().holders(action.key).get(action.pod)
        if isinstance(action, Demote) and (holder is None or not holder.is_warm):
            return "not-there"  # nodes delete files of lower tiers by their own budgets
        return ""

    async def _run(self, action: ModelAction, record: ActionRecord, token: int) -> None:
        try:
            begun = await self._log.begin_action(token, record, ttl_s=INTENT_TTL_S)
            if begun is not BeginResult.OK:
                self._metrics.skipped.labels(record.verb, begun).inc()
                return
            ended = await self._carry_out(action, record)
            self._metrics.actions.labels(ended.verb, ended.reason, ended.outcome).inc()
            await self._log.end_action(ended)
        except RegistryUnavailable:
            logger.warning(
                "the registry is unavailable; an action was not recorded",
                extra={"model": record.subject, "pod": record.pod},
            )
        finally:
            self._ongoing.discard(record.id)

    async def _carry_out(self, action: ModelAction, record: ActionRecord) -> ActionRecord:
        fields = {
            "model": record.subject,
            "pod": record.pod,
            "tier": record.tier,
            "reason": record.reason,
            "words": record.detail,
        }
        logger.info("%s", record.verb, extra=fields)
        try:
            await self._ask_pod(self._state().pods[action.pod].address, action)
        except KeyError:
            return replace(record, outcome=ActionOutcome.FAILED, error="the pod is gone")
        except PodRefused as refused:
            key = action.pod if refused.is_pod_unavailable else record.id
            pause_s = self.backoff.failed(key, self._now_s())
            fields |= {"error": str(refused), "pause_s": f"{pause_s:g}"}
            if refused.is_claim_refused:
                logger.info("%s not needed", record.verb, extra=fields)
                return replace(record, outcome=ActionOutcome.REFUSED, error=str(refused))
            logger.warning("%s failed", record.verb, extra=fields)
            return replace(record, outcome=ActionOutcome.FAILED, error=str(refused))
        self.backoff.succeeded(action.pod)
        self.backoff.succeeded(record.id)
        return replace(record, outcome=ActionOutcome.DONE)

    async def _ask_pod(self, address: str, action: ModelAction) -> None:
        """Load, or free device memory; unloading keeps files for the node's disk budget to delete.

        Raises PodRefused.
        """
        model = name_of_key(action.key).path_segment
        if isinstance(action, Load):
            copies = action.max_other_copies
            await self._pods.load(address, model, action.tier, max_other_copies=copies)
            return
        if action.tier is Tier.HOST:
            await self._pods.load(address, model, Tier.HOST)
        await self._pods.unload(address, model)


def record_of(action: ModelAction, now_s: float) -> ActionRecord:
    return ActionRecord(
        verb="load" if isinstance(action, Load) else "demote",
        subject=str(name_of_key(action.key)),
        reason=str(action.reason),
        detail=action.detail,
        at_s=now_s,
        pod=action.pod,
        tier=str(action.tier),
    )
