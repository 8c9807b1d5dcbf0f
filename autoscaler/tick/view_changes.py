"""Changes a view: adds ongoing loads, pauses pods, scales the times. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from registry.domain.model import Tier
from registry.domain.residency_index import Residency

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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


def without_placed(view: PoolView, placed: Mapping[str, str]) -> PoolView:
    """The view without placed pods, and without the models that one of them holds.

    `placed`: the model by name of pod. Loading policies neither evict placed copies nor add
    others.
    """
    if not placed:
        return view
    served = {
        placed[pod]
        for model in view.models
        for pod, each in model.holders.items()
        if each.is_warm and placed.get(pod) == str(model.spec.name)
    }
    rows = [row for row, each in enumerate(view.models) if str(each.spec.name) not in served]
    models = tuple(
        replace(
            view.models[row],
            holders={
                pod: each for pod, each in view.models[row].holders.items() if pod not in placed
            },
        )
        for row in rows
    )
    pods = {name: pod for name, pod in view.pods.items() if name not in placed}
    demand = None if view.demand is None else view.demand.take(np.array(rows, dtype=int))
    return replace(view, pods=pods, models=models, demand=demand)


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
