"""Carries plans out: writes each action down in the registry, asks the pod, says what became of it.

An action that is under way, here or by whoever led before, is not begun again; one that a pod
refused or that failed is left alone for a growing while. Nothing here decides what to do.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoscaler.planning.actions import Demote, Load
from autoscaler.service.backoff import Backoff
from autoscaler.service.pods import PodRefused
from registry.domain.action_log import ActionOutcome, ActionRecord
from registry.domain.model import Tier, name_of_key
from registry.errors import RegistryUnavailable
from registry.redis.autoscaler_log import BeginResult

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from autoscaler.planning.actions import Action
    from autoscaler.service.metrics import AutoscalerMetrics
    from autoscaler.service.pods import PodClient
    from registry.domain.cluster import ClusterState
    from registry.redis.autoscaler_log import AutoscalerLog

logger = logging.getLogger(__name__)

INTENT_S: Final = 10.0
"""After it, the pod's own load claim shows that a load is under way, or nothing is."""
MOST_AT_ONCE: Final = 128

ModelAction = Load | Demote


class ActionExecutor:
    """Begins actions as tasks of a group that its owner ends. Owned by the event loop."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        autoscaling: AutoscalerLog,
        pods: PodClient,
        metrics: AutoscalerMetrics,
        *,
        state: Callable[[], ClusterState],
        now_s: Callable[[], float],
    ) -> None:
        self._group = group
        self._autoscaling = autoscaling
        self._pods = pods
        self._metrics = metrics
        self._state = state
        self._now_s = now_s
        self._under_way: set[str] = set()
        self.refusals = Backoff()

    def begin(self, actions: Iterable[Action], token: int) -> None:
        """Begin those that are not under way, refused of late, or without a meaning any more."""
        for action in actions:
            if not isinstance(action, Load | Demote):
                continue
            record = record_of(action, self._now_s())
            if cause := self._cause_to_skip(action, record):
                self._metrics.skipped.labels(record.verb, cause).inc()
                continue
            self._under_way.add(record.id)
            self._group.create_task(self._run(action, record, token))

    def _cause_to_skip(self, action: ModelAction, record: ActionRecord) -> str:
        pod = self._state().pods.get(action.pod)
        if pod is None:
            return "pod-gone"
        if record.id in self._under_way:
            return "under-way"
        if len(self._under_way) >= MOST_AT_ONCE:
            return "too-many"
        now_s = self._now_s()
        if self.refusals.is_paused(action.pod, now_s) or self.refusals.is_paused(record.id, now_s):
            return "refused"
        holder = self._state().holders(action.key).get(action.pod)
        if isinstance(action, Demote) and (holder is None or not holder.is_warm):
            return "not-there"  # files of lower tiers leave by the node's own budgets
        return ""

    async def _run(self, action: ModelAction, record: ActionRecord, token: int) -> None:
        try:
            intended = await self._autoscaling.begin_action(token, record, ttl_s=INTENT_S)
            if intended is not BeginResult.OK:
                self._metrics.skipped.labels(record.verb, intended).inc()
                return
            ended = await self._carry_out(action, record)
            self._metrics.actions.labels(ended.verb, ended.reason, ended.outcome).inc()
            await self._autoscaling.end_action(ended)
        except RegistryUnavailable:
            logger.warning("the registry is away; an action was not written down",
                           extra={"model": record.subject, "pod": record.pod})  # fmt: skip
        finally:
            self._under_way.discard(record.id)

    async def _carry_out(self, action: ModelAction, record: ActionRecord) -> ActionRecord:
        details = {
            "model": record.subject, "pod": record.pod, "tier": record.tier,
            "reason": record.reason, "words": record.detail,
        }  # fmt: skip
        logger.info("%s", record.verb, extra=details)
        name = name_of_key(action.key)
        try:
            address = self._state().pods[action.pod].address
            if isinstance(action, Load):
                await self._pods.load(address, name, action.tier)
            else:
                await self._pods.sink(address, name, _kept(action.tier))
        except KeyError:
            return replace(record, outcome=ActionOutcome.FAILED, error="the pod is gone")
        except PodRefused as refused:
            whom = action.pod if refused.is_pods_fault else record.id
            pause_s = self.refusals.refused(whom, self._now_s())
            details |= {"error": str(refused), "pause_s": f"{pause_s:g}"}
            logger.warning("%s failed", record.verb, extra=details)
            return replace(record, outcome=ActionOutcome.FAILED, error=str(refused))
        self.refusals.took(action.pod)
        self.refusals.took(record.id)
        return replace(record, outcome=ActionOutcome.DONE)


def record_of(action: ModelAction, now_s: float) -> ActionRecord:
    """What is written down of an action on a model."""
    return ActionRecord(
        verb="load" if isinstance(action, Load) else "demote",
        subject=str(name_of_key(action.key)),
        reason=str(action.why),
        detail=action.words,
        at_s=now_s,
        pod=action.pod,
        tier=str(action.tier),
    )


def _kept(tier: Tier) -> Tier:
    """Unloading keeps the files on disk, whose budget decides about them."""
    return Tier.HOST if tier is Tier.HOST else Tier.DISK
