"""Hybrid histogram: each model's idle times say from when to when it is warm.

Source: Shahrad et al. 2020, "Serverless in the Wild", section 4.2; the histogram itself is
`autoscaler.forecasting.baselines.hybrid_histogram`. A model leaves after its request, is loaded
again when the shortest usual idle time is over, and leaves when the longest one is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from autoscaler.forecasting.baselines.hybrid_histogram import IdleTimeHistogram, warm_span
from autoscaler.loading.idle_copies import idle_copies
from autoscaler.loading.load_placer import LoadPlacer
from autoscaler.loading.marginal_value import MarginalValue
from autoscaler.planning.actions import Action, ActionReason, Demote, Load
from autoscaler.planning.policy import LoadingPolicy
from registry.domain.model import Preload, Tier

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats, History, Integers
    from autoscaler.planning.pool_view import PoolView


@dataclass(frozen=True, slots=True)
class HybridHistogram:
    """Parameters of the rule."""

    histogram: IdleTimeHistogram = field(default_factory=IdleTimeHistogram)
    sink_to: Tier = Tier.DISK
    loads_per_node: int = 2


@dataclass(frozen=True, slots=True)
class WarmWindows:
    """Warm spans as last worked out: they change with arrivals only."""

    last_active: Integers
    low_min: Floats
    high_min: Floats


def hybrid_histogram(params: HybridHistogram | None = None) -> LoadingPolicy[WarmWindows | None]:
    """The rule with its parameters."""
    plan = partial(_plan, params or HybridHistogram())
    return LoadingPolicy("hybrid-histogram", None, plan, reads_history=True)


def _plan(
    params: HybridHistogram, view: PoolView, spans: WarmWindows | None
) -> tuple[tuple[Action, ...], WarmWindows | None]:
    if view.demand is None or view.demand.history is None:
        return (), spans
    history = view.demand.history
    spans = _spans(history, spans, params.histogram)
    age_min = history.age_minutes
    is_over = age_min > np.ceil(spans.high_min)  # the histogram has whole minutes
    is_due = (age_min >= np.floor(spans.low_min)) & ~is_over
    actions: list[Action] = []
    for row in np.flatnonzero(~is_due):
        model = view.models[row]
        span = f"warm from {spans.low_min[row]:.0f} to {spans.high_min[row]:.0f} min of idleness"
        keep_s = model.spec.policy.keep_alive_s or 0.0
        actions += [
            Demote(model.key, copy.pod, params.sink_to, ActionReason.IDLE, span)
            for copy in idle_copies(model, view)
            if copy.idle_s >= keep_s
        ]
    return (*actions, *_preloads(params, view, np.flatnonzero(is_due), actions)), spans


def _preloads(
    params: HybridHistogram, view: PoolView, rows: Integers, leaving: list[Action]
) -> list[Action]:
    room = LoadPlacer(
        view, MarginalValue(view, None), loads_per_node=params.loads_per_node, leaving=leaving
    )
    actions: list[Action] = []
    for row in rows:
        model = view.models[row]
        is_coming = any(each.is_warm or each.is_warming for each in model.holders.values())
        is_wanted = model.spec.policy.preload is not Preload.OFF and model.may_load(view.time_s)
        if is_coming or not is_wanted:
            continue
        nothing_leaves = 0.0
        place = room.place(model, Tier.DEVICE, nothing_leaves, is_urgent=False)
        if place is not None:
            words = "its usual idle time is over"
            actions.append(Load(model.key, place.pod, Tier.DEVICE, ActionReason.FORECAST, words))
    return actions


def _spans(history: History, known: WarmWindows | None, params: IdleTimeHistogram) -> WarmWindows:
    """Those known, worked out anew where a request came since."""
    last = history.active[:, -1]
    if known is None or known.last_active.shape != last.shape:
        return WarmWindows(last, *warm_span(history, params))
    rows = np.flatnonzero(last != known.last_active)
    if not rows.size:
        return known
    low, high = known.low_min.copy(), known.high_min.copy()
    low[rows], high[rows] = warm_span(history.take(rows), params)
    return WarmWindows(last, low, high)
