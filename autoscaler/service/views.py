"""What a view of the pool does not show yet: loads that were begun, and pods that refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from registry.domain.residency_index import Residency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.planning.pool_view import ModelView, PlannedPod, PoolView
    from autoscaler.service.backoff import Backoff
    from registry.domain.action_log import ActionRecord


def with_intents(view: PoolView, under_way: Sequence[ActionRecord]) -> PoolView:
    """The view with loads that were begun and do not show at their pods yet."""
    begun: dict[str, list[str]] = {}
    for record in under_way:
        if record.verb == "load" and record.tier == Tier.DEVICE:
            begun.setdefault(record.subject, []).append(record.pod)
    if not begun:
        return view

    def known(model: ModelView) -> ModelView:
        pods = [
            pod
            for pod in begun.get(str(model.spec.name), ())
            if pod in view.pods and not _comes_or_is_there(model, pod)
        ]
        if not pods:
            return model
        coming = {pod: Residency(Tier.REMOTE, Tier.REMOTE, view.time_s, 0) for pod in pods}
        return replace(model, holders={**model.holders, **coming})

    return replace(view, models=tuple(known(model) for model in view.models))


def _comes_or_is_there(model: ModelView, pod: str) -> bool:
    holder = model.holders.get(pod)
    return holder is not None and (holder.is_warm or holder.is_warming)


def without_refusers(view: PoolView, refusals: Backoff, now_s: float) -> PoolView:
    """The view in which pods that refused of late take nothing."""

    def known(pod: PlannedPod) -> PlannedPod:
        if refusals.is_paused(pod.name, now_s):
            return replace(pod, is_accepting=False)
        return pod

    return replace(view, pods={name: known(pod) for name, pod in view.pods.items()})
