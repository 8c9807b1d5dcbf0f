"""Scales the times of a view, for replays of compressed traces. Pure.

In a trace that is replayed sixty times as fast, loads, inferences and gaps between arrivals are
sixty times as short. Policies and forecasts have constants for real time, so they plan on a clock
that runs as much faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import ModelView, PoolView


def scale_times(view: PoolView, factor: float) -> PoolView:
    """The view with all times and durations times `factor`, except its demand."""
    if factor == 1:
        return view
    models = tuple(_scaled(each, factor) for each in view.models)
    return replace(view, time_s=factor * view.time_s, models=models)


def _scaled(model: ModelView, factor: float) -> ModelView:
    failure, waiting = model.failure, model.waiting
    return replace(
        model,
        infer_s=factor * model.infer_s,
        hold_s=factor * model.hold_s,
        load_s={tier: factor * seconds for tier, seconds in model.load_s.items()},
        holders={
            pod: replace(each, since_s=factor * each.since_s) for pod, each in model.holders.items()
        },
        uses={pod: replace(each, last_s=factor * each.last_s) for pod, each in model.uses.items()},
        last_arrival_s=factor * model.last_arrival_s,
        waiting=replace(waiting, oldest_s=factor * waiting.oldest_s),
        failure=failure and replace(failure, retry_at_s=factor * failure.retry_at_s),
    )
