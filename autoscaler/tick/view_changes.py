"""Changes a view: adds ongoing loads, pauses pods, scales the times. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from registry.domain.residency_index import Residency

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autoscaler.planning.pool_view import ModelView, PoolView
    from registry.domain.action_log import ActionRecord


def with_ongoing_loads(view: PoolView, ongoing: Sequence[ActionRecord]) -> PoolView:
    """The view with loads that were started and that their pods do not report yet."""
    loading: dict[str, list[str]] = {}
    for record in ongoing:
        if record.verb == "load" and record.tier == Tier.DEVICE:
            loading.setdefault(record.subject, []).append(record.pod)
    if not loading:
        return view

    def with_loads(model: ModelView) -> ModelView:
        pods = [
            pod
            for pod in loading.get(str(model.spec.name), ())
            if pod in view.pods and not _is_reported(model, pod)
        ]
        if not pods:
            return model
        added = {pod: Residency(Tier.REMOTE, Tier.REMOTE, view.time_s, 0) for pod in pods}
        return replace(model, holders={**model.holders, **added})

    return replace(view, models=tuple(with_loads(model) for model in view.models))


def _is_reported(model: ModelView, pod: str) -> bool:
    holder = model.holders.get(pod)
    return holder is not None and (holder.is_warm or holder.is_warming)


def without_paused_pods(view: PoolView, paused: Collection[str]) -> PoolView:
    """The view in which pods that refused a request recently accept nothing."""
    found = {
        name: replace(view.pods[name], is_accepting=False) for name in paused if name in view.pods
    }
    return replace(view, pods={**view.pods, **found}) if found else view


def scale_times(view: PoolView, factor: float) -> PoolView:
    """The view with all times and durations times `factor`, except its demand.

    For replays of compressed traces: at sixty times the pace, loads, inferences and gaps between
    arrivals are sixty times as short. Policies and forecasts have constants for real time, so they
    plan on a clock that is faster by the same factor.
    """
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
