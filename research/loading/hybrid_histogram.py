"""Hybrid histogram: each model's idle times set the window in which it is warm.

Source: Shahrad et al. 2020, "Serverless in the Wild", section 4.2; the histogram itself is
`research.loading.idle_time_histogram`. A model is demoted after its request, loaded
again at the start of its window, and demoted at the end.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from autoscaler.forecasting.history import Floats, History, Integers
from autoscaler.loading_policies.load_placer import LoadPlacer, MarginalValue
from autoscaler.policy import (
    Action,
    ActionReason,
    Demote,
    Load,
    LoadingPolicy,
    PoolView,
    idle_copies,
)
from registry.domain.model import Preload, Tier
from research.loading.idle_time_histogram import IdleTimeHistogram, warm_window

_MAX_RANGE_MIN: Final = 20_160
"""Two weeks: how long arrivals are kept (`CountsParams.ten_minutes`)."""


@dataclass(frozen=True, slots=True)
class HybridHistogram:
    """Parameters of the policy."""

    histogram: IdleTimeHistogram = field(default_factory=IdleTimeHistogram)
    loads_per_node: int = 2


@dataclass(frozen=True, slots=True)
class WarmWindows:
    """Each model's warm window; recomputed after arrivals only."""

    last_active: Integers
    low_min: Floats
    high_min: Floats


def hybrid_histogram(params: HybridHistogram | None = None) -> LoadingPolicy[WarmWindows | None]:
    plan = partial(_plan, params or HybridHistogram())
    return LoadingPolicy("hybrid-histogram", None, plan, reads_history=True)


def hybrid_histogram_of(value: float | None = None) -> LoadingPolicy[WarmWindows | None]:
    """The value: range of the histogram in minutes. Raises ValueError."""
    if value is None:
        return hybrid_histogram()
    if value % 1 or value > _MAX_RANGE_MIN:
        raise ValueError(f"must be whole minutes, at most {_MAX_RANGE_MIN:,}, was {value:g}")
    return hybrid_histogram(HybridHistogram(IdleTimeHistogram(range_min=int(value))))


def _plan(
    params: HybridHistogram, view: PoolView, windows: WarmWindows | None
) -> tuple[tuple[Action, ...], WarmWindows | None]:
    if view.demand is None or view.demand.history is None:
        return (), windows
    history = view.demand.history
    windows = _updated(history, windows, params.histogram)
    age_min = history.age_minutes
    is_over = age_min > np.ceil(windows.high_min)  # the bins are whole minutes
    is_due = (age_min >= np.floor(windows.low_min)) & ~is_over
    actions: list[Action] = []
    for row in np.flatnonzero(~is_due):
        model = view.models[row]
        low_min, high_min = windows.low_min[row], windows.high_min[row]
        detail = f"warm from {low_min:.0f} to {high_min:.0f} min of idleness"
        keep_s = model.spec.policy.keep_alive_s or 0.0
        actions += [
            Demote(model.key, copy.pod, Tier.DISK, ActionReason.IDLE, detail)
            for copy in idle_copies(model, view)
            if copy.idle_s >= keep_s
        ]
    return (*actions, *_preloads(params, view, np.flatnonzero(is_due), actions)), windows


def _preloads(
    params: HybridHistogram, view: PoolView, rows: Integers, leaving: list[Action]
) -> list[Action]:
    placer = LoadPlacer(
        view, MarginalValue(view, None), loads_per_node=params.loads_per_node, planned=leaving
    )
    actions: list[Action] = []
    for row in rows:
        model = view.models[row]
        may_load = model.spec.policy.preload is not Preload.OFF and model.may_load(view.time_s)
        if model.copies or not may_load:
            continue
        without_evictions = 0.0
        placement = placer.place(model, Tier.DEVICE, without_evictions, is_urgent=False)
        if placement is not None:
            detail = "its usual idle time is over"
            actions.append(
                Load(model.key, placement.pod, Tier.DEVICE, ActionReason.FORECAST, detail)
            )
    return actions


def _updated(history: History, known: WarmWindows | None, params: IdleTimeHistogram) -> WarmWindows:
    """The known windows, recomputed for models with new arrivals."""
    last = history.active_minutes[:, -1]
    if known is None or known.last_active.shape != last.shape:
        return WarmWindows(last, *warm_window(history, params))
    rows = np.flatnonzero(last != known.last_active)
    if not rows.size:
        return known
    low, high = known.low_min.copy(), known.high_min.copy()
    low[rows], high[rows] = warm_window(history.take(rows), params)
    return WarmWindows(last, low, high)
