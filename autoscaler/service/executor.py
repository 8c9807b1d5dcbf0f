"""Carries out the actions of a plan: records each one, calls the pod, records the outcome.

An action that is in progress, also one of an earlier leader, is not started again. A pod or an
action that failed is paused, longer after each failure. Nothing here decides what to do.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import httpx

from autoscaler.planning.policy import Demote, Load
from common.backoff import KeyedBackoff
from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.action_log import ActionOutcome, ActionRecord
from registry.domain.model import Tier, name_of_key
from registry.errors import RegistryUnavailable
from registry.redis.autoscaler_log import BeginResult

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from autoscaler.planning.policy import Action
    from autoscaler.service.metrics import AutoscalerMetrics
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName
    from registry.redis.autoscaler_log import AutoscalerLog

_CONNECT_TIMEOUT_S = 2.0
LOAD_TIMEOUT_S = 300.0
"""Of a load: longer than the largest models take, so that only a pod that hangs is given up."""
_MAX_ERROR_CHARACTERS = 300
UNREACHABLE = "unreachable"
logger = logging.getLogger(__name__)

INTENT_TTL_S: Final = 10.0
"""Lifetime of the record of a started action; by then a load has its pod's own claim."""
MAX_CONCURRENT: Final = 128

ModelAction = Load | Demote


class PodRefused(Exception):
    """The pod did not carry out the request; the text says why."""

    def __init__(self, text: str, *, cause: str) -> None:
        super().__init__(text)
        self.is_pod_unavailable = cause in {UNREACHABLE, "draining"}
        """True if requests for other models fail, too: the pod drains or is unreachable."""
        self.is_claim_refused = cause == "load-refused"
        """True if the registry refused the load: another pod loads the model, or has it."""


class PodClient:
    """One HTTP client for all pods."""

    def __init__(
        self,
        *,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        secret: PodSecret | None = None,
        tls: PartTls | None = None,
    ) -> None:
        self._secret = secret or PodSecret()
        tls = tls or PartTls()
        self._scheme = tls.scheme
        self._client = httpx.AsyncClient(
            trust_env=False,
            timeout=httpx.Timeout(load_timeout_s, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=32),
            **tls.httpx_options,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def load(self, address: str, model: ModelName, tier: Tier, max_other_copies: int) -> None:
        """Load a model to a tier; returns when it is there. Raises PodRefused."""
        parameters = {"tier": tier.value, "max_other_copies": max_other_copies}
        await self._post(address, model, "load", {"parameters": parameters})

    async def demote(self, address: str, model: ModelName, tier: Tier) -> None:
        """Free a model's device memory and keep it in `tier`. Raises PodRefused."""
        if tier is Tier.HOST:
            await self._post(address, model, "load", {"parameters": {"tier": tier.value}})
        await self._post(address, model, "unload", {})

    async def _post(
        self, address: str, model: ModelName, verb: str, document: dict[str, object]
    ) -> None:
        url = f"{self._scheme}://{address}/v2/repository/models/{model.path_segment}/{verb}"
        try:
            response = await self._client.post(url, json=document, headers=self._secret.headers)
        except httpx.HTTPError as error:
            raise PodRefused(
                f"no response from the pod at {address}: {error!r}", cause=UNREACHABLE
            ) from error
        if response.is_success:
            return
        cause = response.headers.get("x-pilotlight-not-executed", "")
        text = f"{response.status_code}: {response.text[:_MAX_ERROR_CHARACTERS]}"
        raise PodRefused(text, cause=cause)


class ActionExecutor:
    """Runs actions as tasks of the given group. Owned by the event loop."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        log: AutoscalerLog,
        pods: PodClient,
        metrics: AutoscalerMetrics,
        *,
        state: Callable[[], ClusterState],
        now_s: Callable[[], float],
    ) -> None:
        self._group = group
        self._log = log
        self._pods = pods
        self._metrics = metrics
        self._state = state
        self._now_s = now_s
        self._ongoing: set[str] = set()
        self.backoff = KeyedBackoff()
        """Keys are names of pods and ids of actions."""

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
            logger.warning("the registry is unavailable; an action was not recorded",
                           extra={"model": record.subject, "pod": record.pod})  # fmt: skip
        finally:
            self._ongoing.discard(record.id)

    async def _carry_out(self, action: ModelAction, record: ActionRecord) -> ActionRecord:
        fields = {
            "model": record.subject, "pod": record.pod, "tier": record.tier,
            "reason": record.reason, "words": record.detail,
        }  # fmt: skip
        logger.info("%s", record.verb, extra=fields)
        model = name_of_key(action.key)
        try:
            address = self._state().pods[action.pod].address
            if isinstance(action, Load):
                await self._pods.load(address, model, action.tier, action.max_other_copies)
            else:
                await self._pods.demote(address, model, _kept_tier(action.tier))
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


def _kept_tier(tier: Tier) -> Tier:
    """Unloading keeps the files on disk: deleting them is up to the node's disk budget."""
    return Tier.HOST if tier is Tier.HOST else Tier.DISK
