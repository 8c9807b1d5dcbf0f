"""Adds to a view what the registry does not show yet: ongoing loads and paused pods. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from registry.domain.residency_index import Residency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.planning.pool_view import ModelView, PoolView
    from autoscaler.service.backoff import KeyedBackoff
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


def without_paused_pods(view: PoolView, backoff: KeyedBackoff, now_s: float) -> PoolView:
    """The view in which pods that refused a request recently accept nothing."""
    pods = {
        name: replace(pod, is_accepting=False) if backoff.is_paused(name, now_s) else pod
        for name, pod in view.pods.items()
    }
    return replace(view, pods=pods)
