"""Load a model where that saves more seconds of cold start than it costs, and keep it there.

The expected-cost form of two rules, "Serverless in the Wild" (Shahrad et al. 2020) and FaasCache
(Fuerst and Sharma 2021): load when P(arrival within the window) x seconds saved exceeds the load's
cost (`holding_value`). Free memory is free: a model stays until another one needs its room, unless
memory has a price; then it is demoted to a lower tier when it is no longer worth it. The number of
copies follows expected and queued requests (`copy_targets`). If memory is short, a load evicts idle
copies (`load_placer`) whose loss is smaller than its gain (`marginal_value`). Loads for queued
requests do not depend on the forecast, so that a wrong forecast is no worse than none; under `auto`
gateways alone load for them, and beside other routing policies a first copy uses free memory.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Final

import numpy as np

from autoscaler.forecasting.forecasts import MINUTE_S, Demand
from autoscaler.forecasting.history import Booleans, Floats
from autoscaler.loading_policies.holding_value import HoldingValue, Prices, holding_value
from autoscaler.loading_policies.load_placer import HORIZON_S, LoadPlacer, MarginalValue
from autoscaler.policy import (
    Action,
    ActionReason,
    Demote,
    Load,
    LoadingPolicy,
    ModelView,
    PoolView,
    idle_copies,
    pods_short_of_memory,
)
from registry.domain.model import Preload, RoutingPolicy, Tier
from registry.domain.pod_state import ANY_COPIES


@dataclass(frozen=True, slots=True)
class CopyParams:
    """How load translates to copies."""

    window_s: float = 60.0
    """Copies are for the load of the first forecast window of at least this length."""
    probability: float = 0.9
    """Quantile of the arrivals in that window; the nearest one in the forecast is used."""
    busy_share: float = 0.7
    """Maximum share of the time that a copy is busy, so that queues stay short."""
    max_wait_s: float = 2.0
    """Target time to finish queued requests in, for models without a deadline."""


def expected_copies(demand: Demand, infer_s: Floats, params: CopyParams) -> Floats:
    """(models,): copies that the forecast load keeps busy, as a fraction."""
    horizon = demand.horizon
    windows = np.asarray(horizon.windows_s)
    column = int(np.argmax(windows >= min(params.window_s, windows[-1])))
    level = int(np.argmin(np.abs(np.asarray(horizon.probabilities) - params.probability)))
    arrivals = np.nan_to_num(demand.forecast.quantiles[:, column, level], nan=0.0, posinf=0.0)
    result: Floats = arrivals * infer_s / (windows[column] * params.busy_share)
    return result


def target_copies(
    view: PoolView, expected: Floats, is_worth_holding: Booleans, params: CopyParams
) -> list[int]:
    """By row: copies for queued requests, and for the forecast if the model is worth holding."""
    by_load = np.where(is_worth_holding, np.maximum(np.ceil(expected), 1.0), 0.0).astype(np.int64)
    return [
        _bounded(model, max(count, _for_queue(model, view.time_s, params)))
        for model, count in zip(view.models, by_load.tolist(), strict=True)
    ]


def _for_queue(model: ModelView, now_s: float, params: CopyParams) -> int:
    """Warm copies, which are busy with arrivals, plus the copies that serve the queue in time."""
    if not model.waiting.requests:
        return 0
    warm_since_s = [each.since_s for each in model.holders.values() if each.is_warm]
    if warm_since_s and now_s - min(warm_since_s) < params.max_wait_s:
        return len(warm_since_s)  # the queue is being served now
    within_s = model.spec.policy.deadline_s or params.max_wait_s
    additional = ceil(model.waiting.requests * model.infer_s / max(within_s, 1e-3))
    return len(warm_since_s) + max(1, additional)


def _bounded(model: ModelView, count: int) -> int:
    policy = model.spec.policy
    if policy.preload is Preload.EAGER and policy.preload_tier is Tier.DEVICE:
        count = max(count, 1)
    count = max(count, policy.min_copies)
    return count if policy.max_copies is None else min(count, policy.max_copies)


@dataclass(frozen=True, slots=True)
class Predictive:
    """Parameters of the policy."""

    prices: Prices = field(default_factory=Prices)
    copies: CopyParams = field(default_factory=CopyParams)
    horizon_s: float = HORIZON_S
    keep_margin: float = 0.9
    """Where device memory has a price: a held model is demoted when its value over its price falls
    below this ratio."""
    surplus_keep_s: float = 60.0
    """Idle time after which a surplus copy is demoted where memory is short."""
    eviction_margin: float = 4.0
    """An eviction for a forecast must gain this many times what it loses: what is evicted again is
    loaded twice, and gains are estimates."""
    loads_for_queue: bool = False
    """True where no gateway loads for queued requests: for all of them, with evictions. Gateways
    do under `auto` for all, else for a model's first copy as soon as a slot is free. `min-copies`
    are always loaded."""
    loads_per_node: int = 2
    """Maximum number of concurrent loads on a node; loads for queued requests are exempt."""
    loads_per_plan: int = 64


def predictive(params: Predictive | None = None) -> LoadingPolicy[None]:
    return LoadingPolicy("predictive", None, partial(_plan, params or Predictive()))


def _plan(params: Predictive, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    if not view.models:
        return (), None
    if view.demand is None:
        nothing = np.zeros(len(view.models))
        targets = target_copies(view, nothing, nothing > 0, params.copies)
        return tuple(_loads(params, view, None, targets, ())), None
    value = holding_value(view, view.demand, params.prices)
    infer_s = np.array([each.infer_s for each in view.models])
    expected = expected_copies(view.demand, infer_s, params.copies)
    keep_margin = -1.0 if params.prices.device is None else params.keep_margin
    is_worth_keeping = value.margin[Tier.DEVICE] > keep_margin
    keep = target_copies(view, expected, is_worth_keeping, params.copies)
    targets = target_copies(view, expected, value.is_worth_holding[Tier.DEVICE], params.copies)
    demotions = _demotions(params, view, value, keep)
    return (*demotions, *_loads(params, view, value, targets, demotions)), None


def _demotions(
    params: Predictive, view: PoolView, value: HoldingValue, keep: list[int]
) -> list[Action]:
    actions: list[Action] = []
    needed = None if params.prices.device is not None else pods_short_of_memory(view)
    for row, (model, count) in enumerate(zip(view.models, keep, strict=True)):
        if not model.holders:
            continue
        below = _tier_below_device(value, row)
        actions += _device_demotions(params, view, model, count, below, needed)
        if below is not Tier.HOST and not model.spec.policy.pin:
            actions += [
                Demote(model.key, pod, below, ActionReason.IDLE, "not worth host memory")
                for pod, each in model.holders.items()
                if each.tier is Tier.HOST and not each.is_warming and pod in view.pods
            ]
    return actions


def _device_demotions(
    params: Predictive,
    view: PoolView,
    model: ModelView,
    keep: int,
    below: Tier,
    needed: Collection[str] | None,
) -> list[Action]:
    """`needed`: the pods on which others need the memory; None: memory has a price on all."""
    warm = sum(each.is_warm for each in model.holders.values())
    surplus = warm - keep
    if surplus <= 0:
        return []
    keep_s = model.spec.policy.keep_alive_s or 0.0
    if keep:
        keep_s = max(keep_s, params.surplus_keep_s)
        reason, detail = ActionReason.COPIES, f"{warm} copies, {keep} wanted"
    else:
        reason, detail = ActionReason.IDLE, "saves less than its memory costs"
    idle = [
        copy
        for copy in idle_copies(model, view)
        if copy.idle_s >= keep_s and (needed is None or copy.pod in needed)
    ]
    return [Demote(model.key, copy.pod, below, reason, detail) for copy in idle[:surplus]]


def _tier_below_device(value: HoldingValue, row: int) -> Tier:
    """The tier of a demoted model. Nodes delete files from disk by their own budgets."""
    return Tier.HOST if value.is_worth_holding[Tier.HOST][row] else Tier.DISK


@dataclass(frozen=True, slots=True)
class _LoadCandidate:
    row: int
    tier: Tier
    gain: float | None
    """Seconds saved per second; infinity for queued requests of a model without a copy; None for
    an additional copy for a queue, whose gain is `MarginalValue.unserved`."""
    is_urgent: bool
    reason: ActionReason
    detail: str
    may_evict: bool = True
    """False for an additional copy for a forecast: it uses free memory only."""
    max_other_copies: int = ANY_COPIES
    """Gateways load models too, after the view was read."""


_DISTANCE: Final = {Tier.DEVICE: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}


def _loads(
    params: Predictive,
    view: PoolView,
    value: HoldingValue | None,
    targets: list[int],
    leaving: Sequence[Action],
) -> list[Action]:
    candidates = [
        candidate
        for row, (model, count) in enumerate(zip(view.models, targets, strict=True))
        if (count or value is not None) and model.may_load(view.time_s)
        for candidate in _candidates(row, model, count, value)
        if not candidate.is_urgent or _loads_for_queue(params, model)
    ]
    if not candidates:
        return []
    marginal_value = MarginalValue(view, value.saved_per_s if value else None, params.horizon_s)

    def rank(candidate: _LoadCandidate) -> tuple[bool, float, int]:
        gain = candidate.gain
        if gain is None:
            gain = marginal_value.unserved(view.models[candidate.row])
        return not candidate.is_urgent, -gain, candidate.row

    candidates.sort(key=rank)
    placer = LoadPlacer(view, marginal_value, loads_per_node=params.loads_per_node, planned=leaving)
    actions: list[Action] = []
    for each in candidates[: params.loads_per_plan]:
        model = view.models[each.row]
        gain = each.gain
        if value is not None and not each.is_urgent:
            gain = _forecast_gain(params, model, each, value)
        elif gain == np.inf and not _evicts_for_queue(params, model):
            gain = 0.0
        if gain is not None and gain < 0.0:
            continue
        placement = placer.place(model, each.tier, gain, is_urgent=each.is_urgent)
        if placement is not None:
            pod, detail = placement.pod, f"for {model.key}"
            actions += [
                Demote(evicted.model.key, pod, Tier.HOST, ActionReason.ROOM, detail)
                for evicted in placement.evictions
            ]
            load = Load(model.key, pod, each.tier, each.reason, each.detail, each.max_other_copies)
            actions.append(load)
    return actions


def _loads_for_queue(params: Predictive, model: ModelView) -> bool:
    """Whether queued requests of the model are this policy's to load for.

    Under `auto` they are the gateway's, which weighs a load against other ways to serve them.
    """
    is_gateways = model.spec.policy.routing == RoutingPolicy.AUTO
    return not is_gateways or _evicts_for_queue(params, model)


def _evicts_for_queue(params: Predictive, model: ModelView) -> bool:
    return params.loads_for_queue or model.copies < model.spec.policy.min_copies


def _forecast_gain(
    params: Predictive, model: ModelView, candidate: _LoadCandidate, value: HoldingValue
) -> float:
    """What the load may cost others by evictions; negative if it delays more than it saves."""
    gain, load_s = candidate.gain or 0.0, model.load_from_s(Tier.REMOTE)
    if not candidate.may_evict:
        return 0.0
    delay = value.delay_per_s(candidate.row, load_s)
    if gain < delay and model.spec.policy.preload is not Preload.EAGER:
        return gain - delay
    cost = max(delay, params.prices.load * load_s / MINUTE_S)
    return max(0.0, gain - cost) / params.eviction_margin


def _candidates(
    row: int, model: ModelView, count: int, value: HoldingValue | None
) -> list[_LoadCandidate]:
    policy, copies = model.spec.policy, model.copies
    may_preload = policy.preload is not Preload.OFF and model.failure is None
    detail = _detail(value, row)
    if model.failure is not None:
        count = min(count, copies + 1)
    if count > copies:
        is_urgent = bool(model.waiting.requests) or copies < policy.min_copies
        if not is_urgent and not may_preload:
            return []
        tier = Tier.DEVICE if is_urgent else policy.preload_tier
        gain = value.preload_per_s(tier, row) if value is not None else 0.0
        candidate = _LoadCandidate(row, tier, gain, is_urgent, _reason(model, copies), detail)
        if tier is Tier.DEVICE:
            return [_for_copy(candidate, model, at) for at in range(copies + 1, count + 1)]
        return _unless_held(candidate, model)
    if copies or value is None or not may_preload:
        return []
    tier = _tier_below_device(value, row)
    if not value.is_worth_holding[tier][row]:
        return []
    gain = value.preload_per_s(tier, row)
    candidate = _LoadCandidate(row, tier, gain, False, ActionReason.FORECAST, detail)
    return _unless_held(candidate, model)


def _for_copy(candidate: _LoadCandidate, model: ModelView, number: int) -> _LoadCandidate:
    """The candidate for a model's copy of this number, counted from 1.

    Only the first copy saves cold starts, and it must be loaded if requests are queued; additional
    copies shorten the queue.
    """
    candidate = replace(candidate, max_other_copies=number - 1)
    if candidate.is_urgent and number <= max(1, model.spec.policy.min_copies):
        return replace(candidate, gain=np.inf)
    if candidate.is_urgent:
        return replace(candidate, gain=None)
    return replace(candidate, gain=(candidate.gain or 0.0) / number, may_evict=number == 1)


def _unless_held(candidate: _LoadCandidate, model: ModelView) -> list[_LoadCandidate]:
    """Nothing if any pod has the model on the candidate's tier or a nearer one."""
    nearest = min(
        (_DISTANCE[each.tier] for each in model.holders.values()), default=_DISTANCE[Tier.REMOTE]
    )
    return [candidate] if nearest > _DISTANCE[candidate.tier] else []


def _reason(model: ModelView, copies: int) -> ActionReason:
    if model.waiting.requests:
        return ActionReason.WAITING
    return ActionReason.FORECAST if copies >= model.spec.policy.min_copies else ActionReason.FLOOR


def _detail(value: HoldingValue | None, row: int) -> str:
    if value is None:
        return "no forecast yet"
    p_minute, saved_s = float(value.p_per_s[row]) * MINUTE_S, float(value.saved_s[Tier.DEVICE][row])
    margin = float(value.margin[Tier.DEVICE][row])
    price_s = p_minute * saved_s / margin if margin else np.inf
    return (
        f"P(arrival within 60 s) {min(1.0, p_minute):.3f}, which would wait {saved_s:.2f} s less:"
        f" {p_minute * saved_s:.3f} s saved a minute; its memory is worth {price_s:.3f} s a minute"
    )
