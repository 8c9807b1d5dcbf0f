"""Clockwork's priorities: load the model with most work that nobody can serve yet.

Source: Gujarati et al. 2020, "Serving DNNs like Clockwork", as given and adjusted by Blinowski et
al. 2024, section 4.2.4. A model's demand is its waiting work in seconds; it is spread evenly over
the machines that hold it; a machine's load is the sum of what is spread to it. Priority = demand
less what machines serve of it within the horizon. The highest is loaded on an idle machine; for it
leaves the model whose priority after leaving is lowest, and only if that is lower than the pending
one's. Strategies by batch size are the pods' batching; which request goes first, the gateway's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.loading.idle_pods import IdlePod, idle_pods
from autoscaler.loading.work_allocation import WorkAllocation
from autoscaler.planning.actions import Action, ActionReason, Demote, Load
from autoscaler.planning.policy import LoadingPolicy
from registry.domain.model import Tier

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import ModelView, PoolView


@dataclass(frozen=True, slots=True)
class Clockwork:
    """Parameters of the rule."""

    horizon_s: float = 2.0
    """Work that a machine can do in time; a usual deadline."""
    sink_to: Tier = Tier.DISK


def clockwork(params: Clockwork | None = None) -> LoadingPolicy[None]:
    """The rule with its parameters."""
    plan = partial(_plan, params or Clockwork())
    return LoadingPolicy("clockwork", None, plan, reads_demand=False)


def _plan(params: Clockwork, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    demand_s = {each.key: each.waiting.requests * each.infer_s for each in view.models}
    work = WorkAllocation(view, demand_s, params.horizon_s)
    actions: list[Action] = []
    idle = idle_pods(view)
    while idle:
        open_to = [each for each in view.models if each.may_load(view.time_s) and work.can(each)]
        pending = max(open_to, key=lambda each: (work.unserved_s(each), each.key), default=None)
        if pending is None or work.unserved_s(pending) <= 0:
            break
        found = _place(work, pending, idle)
        if found is None:
            break
        pod, leaving = found
        words = f"{work.unserved_s(pending):.2g} s of work nobody serves"
        for each in leaving:
            actions.append(Demote(each.key, pod.pod.name, params.sink_to, ActionReason.ROOM, words))
            work.remove(each, pod.pod.name)
        actions.append(Load(pending.key, pod.pod.name, Tier.DEVICE, ActionReason.WAITING, words))
        work.add(pending, pod.pod.name)
        idle.remove(pod)
    return tuple(actions), None


def _place(
    work: WorkAllocation, pending: ModelView, idle: list[IdlePod]
) -> tuple[IdlePod, list[ModelView]] | None:
    """A pod with room, else the one whose models are missed least; None: all are missed more."""
    best: tuple[float, str, IdlePod, list[ModelView]] | None = None
    for each in idle:
        if pending in each.warm:
            continue
        leaving = _least_missed(work, pending, each)
        if leaving is None:
            continue
        harm = max((work.unserved_without_s(one, each.pod.name) for one in leaving), default=-1e9)
        if best is None or (harm, each.pod.name) < best[:2]:
            best = harm, each.pod.name, each, leaving
    return None if best is None else (best[2], best[3])


def _least_missed(
    work: WorkAllocation, pending: ModelView, idle: IdlePod
) -> list[ModelView] | None:
    missing = pending.size_bytes - idle.free_bytes()
    name = idle.pod.name
    chosen: list[ModelView] = []
    by_priority = sorted(idle.warm, key=lambda one: (work.unserved_without_s(one, name), one.key))
    for model in by_priority:
        is_missed_more = work.unserved_without_s(model, name) >= work.unserved_s(pending)
        if missing <= 0 or is_missed_more:
            break
        if not model.spec.policy.pin:
            chosen.append(model)
            missing -= model.size_bytes
    return chosen if missing <= 0 else None
