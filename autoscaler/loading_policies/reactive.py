"""Two loading policies without a forecast: keep-alive, and Clockwork's priorities."""

from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from autoscaler.loading_policies.load_placer import WorkAllocation
from autoscaler.policy import (
    Action,
    ActionReason,
    Demote,
    IdlePod,
    Load,
    LoadingPolicy,
    ModelView,
    PoolView,
    idle_copies,
    idle_pods,
)
from registry.domain.model import Tier


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Parameters of the policy."""

    keep_s: float = 600.0
    """Time after the model's last request."""


def keep_alive(params: KeepAlive | None = None) -> LoadingPolicy[None]:
    """A model is demoted a fixed time after its last request.

    The policy of OpenWhisk and of the other platforms in Shahrad et al. 2020, "Serverless in the
    Wild", section 4.1 (10 minutes there). A model's `keep-alive` annotation takes precedence.
    """
    plan = partial(_plan_keep_alive, params or KeepAlive())
    return LoadingPolicy("keep-alive", None, plan, reads_demand=False)


def _plan_keep_alive(params: KeepAlive, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    actions = []
    for model in view.models:
        own_s = model.spec.policy.keep_alive_s
        keep_s = params.keep_s if own_s is None else own_s
        for copy in idle_copies(model, view):
            if copy.idle_s > keep_s:
                detail = f"idle for {copy.idle_s:.0f} s, kept for {keep_s:g} s"
                actions.append(Demote(model.key, copy.pod, Tier.DISK, ActionReason.IDLE, detail))
    return tuple(actions), None


@dataclass(frozen=True, slots=True)
class Clockwork:
    """Parameters of the policy."""

    horizon_s: float = 2.0
    """Seconds of work that a machine can do in time: a usual deadline."""


def clockwork(params: Clockwork | None = None) -> LoadingPolicy[None]:
    """Load the model with the most work that its machines cannot do in time.

    Source: Gujarati et al. 2020, "Serving DNNs like Clockwork", as adjusted by Blinowski et al.
    2024, section 4.2.4. A model's demand is its queued work in seconds, spread evenly over the
    machines that hold it; a machine's load is the sum of these shares. Priority = demand less the
    part that machines serve within the horizon. The model of the highest priority is loaded on an
    idle machine. It evicts the model with the lowest priority after eviction, if that is lower than
    its own. The pods batch, and the gateway's queue orders the requests.
    """
    plan = partial(_plan_clockwork, params or Clockwork())
    return LoadingPolicy("clockwork", None, plan, reads_demand=False)


def _plan_clockwork(params: Clockwork, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
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
