"""Clockwork's priorities: load the model with the most work that its machines cannot do in time.

Source: Gujarati et al. 2020, "Serving DNNs like Clockwork", as given and adjusted by Blinowski et
al. 2024, section 4.2.4. A model's demand is its queued work in seconds, spread evenly over the
machines that hold it; a machine's load is the sum of these shares. Priority = demand less the part
that machines serve within the horizon. The model of the highest priority is loaded on an idle
machine. It evicts the model with the lowest priority after eviction, if that is lower than its own.
The pods' batching takes the place of Clockwork's strategies by batch size, and the gateway's queue
that of its order of requests.
"""

from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from autoscaler.placement.idle import IdlePod, idle_pods
from autoscaler.placement.load_placer import WorkAllocation
from autoscaler.planning.policy import Action, ActionReason, Demote, Load, LoadingPolicy
from autoscaler.planning.pool_view import ModelView, PoolView
from registry.domain.model import Tier


@dataclass(frozen=True, slots=True)
class Clockwork:
    """Parameters of the policy."""

    horizon_s: float = 2.0
    """Seconds of work that a machine can do in time: a usual deadline."""


def clockwork(params: Clockwork | None = None) -> LoadingPolicy[None]:
    plan = partial(_plan, params or Clockwork())
    return LoadingPolicy("clockwork", None, plan, reads_demand=False)


def _plan(params: Clockwork, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    demand_s = {each.key: each.waiting.requests * each.infer_s for each in view.models}
    work = WorkAllocation(view, demand_s, params.horizon_s)
    actions: list[Action] = []
    idle = idle_pods(view)
    while idle:
        loadable = [
            each for each in view.models if each.may_load(view.time_s) and work.can_add(each)
        ]
        pending = max(loadable, key=lambda each: (work.unserved_s(each), each.key), default=None)
        if pending is None or work.unserved_s(pending) <= 0:
            break
        found = _place(work, pending, idle)
        if found is None:
            break
        chosen, evicted = found
        pod = chosen.pod.name
        detail = f"{work.unserved_s(pending):.2g} s of unserved work"
        for each in evicted:
            actions.append(Demote(each.key, pod, Tier.DISK, ActionReason.ROOM, detail))
            work.remove(each, pod)
        actions.append(Load(pending.key, pod, Tier.DEVICE, ActionReason.WAITING, detail))
        work.add(pending, pod)
        idle.remove(chosen)
    return tuple(actions), None


def _place(
    work: WorkAllocation, pending: ModelView, idle: list[IdlePod]
) -> tuple[IdlePod, tuple[ModelView, ...]] | None:
    """The pod whose evictions have the lowest priority, and the evictions; None: no pod."""
    best: tuple[float, str, IdlePod, tuple[ModelView, ...]] | None = None
    for each in idle:
        if pending in each.warm:
            continue
        evicted = _evictions(work, pending, each)
        if evicted is None:
            continue
        name = each.pod.name
        priority = max((work.unserved_without_s(model, name) for model in evicted), default=-1e9)
        if best is None or (priority, name) < best[:2]:
            best = priority, name, each, evicted
    return None if best is None else (best[2], best[3])


def _evictions(
    work: WorkAllocation, pending: ModelView, idle: IdlePod
) -> tuple[ModelView, ...] | None:
    """The models of lowest priority to evict, each below the pending model's priority."""
    name = idle.pod.name
    by_priority = sorted(idle.warm, key=lambda one: (work.unserved_without_s(one, name), one.key))
    lower = takewhile(
        lambda one: work.unserved_without_s(one, name) < work.unserved_s(pending), by_priority
    )
    return idle.select_evictions(pending.size_bytes, lower)
