"""Hold a model where that saves more seconds of cold start than its memory is worth.

Ours; the rule that "Serverless in the Wild" (Shahrad et al. 2020) and FaasCache (Fuerst and Sharma
2021) each take one half of, put as expected cost: load when P(arrival within the window) x seconds
saved exceeds bytes x window x price of memory (`worth`); let it sink a tier when it does not any
more. Copies follow the forecast load and what waits (`wanted`); where memory is short, a copy takes
the place of others (`room`) that do less for all models together (`stakes`). What waits is served
whatever the forecast says, so that a wrong forecast is no worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.loading.copy_targets import CopyParams, expected_copies, target_copies
from autoscaler.loading.holding_value import Prices, holding_value
from autoscaler.loading.idle_copies import idle_copies
from autoscaler.loading.load_placer import LoadPlacer
from autoscaler.loading.marginal_value import HORIZON_S, MarginalValue
from autoscaler.planning.actions import Action, ActionReason, Demote, Load
from autoscaler.planning.policy import LoadingPolicy
from registry.domain.model import Preload, Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.loading.holding_value import HoldingValue
    from autoscaler.planning.pool_view import ModelView, PoolView


@dataclass(frozen=True, slots=True)
class Predictive:
    """Parameters of the rule."""

    prices: Prices = field(default_factory=Prices)
    copies: CopyParams = field(default_factory=CopyParams)
    horizon_s: float = HORIZON_S
    stay_share: float = 0.9
    """What is held stays while it saves this share of its price: no to and fro at the edge."""
    extra_stay_s: float = 60.0
    """A copy beyond those wanted goes once it was idle for so long."""
    loads_per_node: int = 2
    """Loads for nobody begin only while fewer are under way at the node."""
    loads_per_plan: int = 64


def predictive(params: Predictive | None = None) -> LoadingPolicy[None]:
    """The rule with its parameters."""
    return LoadingPolicy("predictive", None, partial(_plan, params or Predictive()))


def _plan(params: Predictive, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    if not view.models:
        return (), None
    if view.demand is None:
        return tuple(_load_missing(params, view, None, _floors(view, params), ())), None
    worth = holding_value(view, view.demand, params.prices)
    infer_s = np.array([each.infer_s for each in view.models])
    expected = expected_copies(view.demand, infer_s, params.copies)
    wanted = target_copies(view, expected, worth.is_worth[Tier.DEVICE], params.copies)
    stays = worth.margin[Tier.DEVICE] > params.stay_share
    kept = target_copies(view, expected, stays, params.copies)
    sinking = _sink(params, view, worth, kept)
    return (*sinking, *_load_missing(params, view, worth, wanted, sinking)), None


def _floors(view: PoolView, params: Predictive) -> list[int]:
    nothing = np.zeros(len(view.models))
    return target_copies(view, nothing, nothing > 0, params.copies)


# What goes


def _sink(params: Predictive, view: PoolView, worth: HoldingValue, kept: list[int]) -> list[Action]:
    actions: list[Action] = []
    for row, (model, count) in enumerate(zip(view.models, kept, strict=True)):
        if not model.holders:
            continue
        below = _below(worth, row)
        actions += _sink_device(params, view, model, count, below)
        if below is not Tier.HOST and not model.spec.policy.pin:
            actions += [
                Demote(model.key, pod, below, ActionReason.IDLE, "not worth host memory")
                for pod, each in model.holders.items()
                if each.tier is Tier.HOST and not each.is_warming and pod in view.pods
            ]
    return actions


def _sink_device(
    params: Predictive, view: PoolView, model: ModelView, count: int, below: Tier
) -> list[Action]:
    warm = sum(each.is_warm for each in model.holders.values())
    extra = warm - count
    if extra <= 0:
        return []
    keep_s = model.spec.policy.keep_alive_s or 0.0
    if count:
        keep_s = max(keep_s, params.extra_stay_s)
    why = ActionReason.COPIES if count else ActionReason.IDLE
    words = f"{warm} copies, {count} wanted" if count else "saves less than its memory is worth"
    going = [copy for copy in idle_copies(model, view) if copy.idle_s >= keep_s]
    return [Demote(model.key, copy.pod, below, why, words) for copy in going[:extra]]


def _below(worth: HoldingValue, row: int) -> Tier:
    """The tier under the device that a model sinks to. Disks drop files by their own budgets."""
    return Tier.HOST if worth.is_worth[Tier.HOST][row] else Tier.DISK


# What comes


@dataclass(frozen=True, slots=True)
class _WantedLoad:
    row: int
    tier: Tier
    gain: float | None
    """Seconds saved per second by the load; infinity where requests wait and nobody serves them,
    None for one more copy for a queue: that is as much as it would do of it."""
    is_urgent: bool
    why: ActionReason
    words: str
    may_evict: bool = True
    """A further copy for a forecast takes room that is free, and none that somebody has."""


_RANK: Final = {Tier.DEVICE: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}


def _load_missing(
    params: Predictive,
    view: PoolView,
    worth: HoldingValue | None,
    wanted: list[int],
    leaving: Sequence[Action],
) -> list[Action]:
    wishes = [
        wish
        for row, (model, count) in enumerate(zip(view.models, wanted, strict=True))
        if (count or worth is not None) and model.may_load(view.time_s)
        for wish in _wishes(row, model, count, worth)
    ]
    if not wishes:
        return []
    stakes = MarginalValue(view, worth, params.horizon_s)

    def rank(wish: _WantedLoad) -> tuple[bool, float, int]:
        gain = stakes.unserved(view.models[wish.row]) if wish.gain is None else wish.gain
        return not wish.is_urgent, -gain, wish.row

    wishes.sort(key=rank)
    room = LoadPlacer(view, stakes, loads_per_node=params.loads_per_node, leaving=leaving)
    actions: list[Action] = []
    for wish in wishes[: params.loads_per_plan]:
        model = view.models[wish.row]
        gain = wish.gain if wish.may_evict else 0.0
        place = room.place(model, wish.tier, gain, is_urgent=wish.is_urgent)
        if place is not None:
            words = f"for {model.key}"
            actions += [
                Demote(each.model.key, place.pod, Tier.HOST, ActionReason.ROOM, words)
                for each in place.victims
            ]
            actions.append(Load(model.key, place.pod, wish.tier, wish.why, wish.words))
    return actions


def _wishes(
    row: int, model: ModelView, count: int, worth: HoldingValue | None
) -> list[_WantedLoad]:
    policy = model.spec.policy
    coming = sum(each.is_warm or each.is_warming for each in model.holders.values())
    gain, words = worth.saves(row) if worth is not None else 0.0, _words(worth, row)
    if count > coming:
        is_urgent = bool(model.waiting.requests) or coming < policy.min_copies
        if not is_urgent and policy.preload is Preload.OFF:
            return []
        tier = Tier.DEVICE if is_urgent else policy.preload_tier
        wish = _WantedLoad(row, tier, gain, is_urgent, _why(model, coming), words)
        if tier is Tier.DEVICE:
            return [_nth(wish, model, at) for at in range(coming + 1, count + 1)]
        return _where_missing(wish, model)
    if coming or worth is None or policy.preload is Preload.OFF:
        return []
    tier = _below(worth, row)
    if not worth.is_worth[tier][row]:
        return []
    return _where_missing(_WantedLoad(row, tier, 0.0, False, ActionReason.FORECAST, words), model)


def _nth(wish: _WantedLoad, model: ModelView, at: int) -> _WantedLoad:
    """The wish for the copy that would be the `at`-th.

    The first saves cold starts, and is worth anything to who waits. One more only shortens a queue.
    """
    if wish.is_urgent and at <= max(1, model.spec.policy.min_copies):
        return replace(wish, gain=np.inf)
    if wish.is_urgent:
        return replace(wish, gain=None)
    return replace(wish, gain=(wish.gain or 0.0) / at, may_evict=at == 1)


def _where_missing(wish: _WantedLoad, model: ModelView) -> list[_WantedLoad]:
    """The wish for a lower tier, unless the model is there or nearer already."""
    nearest = min((_RANK[each.tier] for each in model.holders.values()), default=_RANK[Tier.REMOTE])
    return [wish] if nearest > _RANK[wish.tier] else []


def _why(model: ModelView, coming: int) -> ActionReason:
    if model.waiting.requests:
        return ActionReason.WAITING
    return ActionReason.FORECAST if coming >= model.spec.policy.min_copies else ActionReason.FLOOR


def _words(worth: HoldingValue | None, row: int) -> str:
    if worth is None:
        return "nothing was counted yet"
    return (
        f"P(arrival within 60 s) {min(1.0, worth.per_s[row] * 60):.3f}, saves "
        f"{worth.saved_s[Tier.DEVICE][row]:.2f} s, "
        f"{worth.margin[Tier.DEVICE][row]:.2g} times its price"
    )
