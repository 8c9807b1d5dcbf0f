"""A view on a clock that runs faster than the registry's: for replays of compressed traces. Pure.

A trace played sixty times as fast has loads, inferences and gaps sixty times as short. Policies
and forecasts, whose constants are those of real life, see all of it at its own pace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import ModelView, PoolView


def at_pace(view: PoolView, pace: float) -> PoolView:
    """The view with all times and durations `pace` times as long; its demand is so already."""
    if pace == 1:
        return view
    models = tuple(_model(each, pace) for each in view.models)
    return replace(view, time_s=pace * view.time_s, models=models)


def _model(model: ModelView, pace: float) -> ModelView:
    failure, waiting = model.failure, model.waiting
    return replace(
        model,
        infer_s=pace * model.infer_s,
        hold_s=pace * model.hold_s,
        load_s={tier: pace * seconds for tier, seconds in model.load_s.items()},
        holders={
            pod: replace(each, since_s=pace * each.since_s) for pod, each in model.holders.items()
        },
        uses={pod: replace(each, last_s=pace * each.last_s) for pod, each in model.uses.items()},
        last_arrival_s=pace * model.last_arrival_s,
        waiting=replace(waiting, oldest_s=pace * waiting.oldest_s),
        failure=failure and replace(failure, retry_at_s=pace * failure.retry_at_s),
    )
