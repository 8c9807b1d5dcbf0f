"""The wanted number of pods of a pool, and the pods to drain first. A fold over views.

Scales up at once, by forecast and by queued requests, so that a wrong forecast is never worse than
reacting. Scales down only to the largest number wanted within `stable_s`, as Knative's stable
window does, so that recurring load does not make the number oscillate. From zero, one queued model
wakes one pod; several models wake more, by the time that their loads take.

Pods leave by their use: cold, idle, in use, busy. Source: Gujarati et al. 2017, Swayam: distributed
autoscaling to meet SLAs of machine learning inference services with resource efficiency; there a
pod serves one model, here it may hold many.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Final

import numpy as np

from autoscaler.policy import (
    NEVER_S,
    Action,
    ActionReason,
    DrainPod,
    Limits,
    ModelView,
    PoolView,
    SetPods,
)
from registry.domain.model import Preload, Tier
from registry.domain.pod import default_slots
from registry.domain.pod_state import PodState
from registry.domain.records import PodShape
from registry.policy_names import loading_problem

IN_USE_S = 60.0
"""A model counts as in use for this time after an arrival."""


@dataclass(frozen=True, slots=True)
class ScalingParams:
    """Times in seconds."""

    stable_s: float = 60.0
    """Fewer pods must suffice for this time before one is removed."""
    idle_s: float = 120.0
    """The last pod is kept for this time after the last request."""
    window_s: float = 60.0
    """Pods are planned for the arrivals expected within this window."""
    busy_share: float = 0.7
    """Target mean share of busy slots."""
    likely: float = 0.5
    """A model with this P(arrival) within the next minute keeps one pod."""
    max_wait_s: float = 2.0
    """Target time to finish queued requests in."""
    rate_window_s: float = 3.0
    """Once the first pod exists, there are at least enough pods for the arrivals in this window.
    Gateways report arrivals once a second, so a shorter window would show none or twice as many."""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Numbers wanted within `stable_s`: (time, pods), times rising and pods falling."""

    wanted: tuple[tuple[float, int], ...] = ()
    current: int | None = None
    """Pods wanted by the last plan; None before the first: then the existing ones count."""
    arrived: tuple[tuple[float, float], ...] = ()
    """(time, slot seconds of the arrivals of that plan), of the last `rate_window_s`."""
    existing: int | None = None
    """Existing pods; None: those in the registry."""


def scale_pods(
    view: PoolView, state: ScalingState, params: ScalingParams
) -> tuple[tuple[Action, ...], ScalingState]:
    """The wanted number and the pods to drain; no action while the number stays the same."""
    existing = len(view.pods) if state.existing is None else state.existing
    current = existing if state.current is None else state.current
    arrived = _arrived(view, state, params)
    need, reason, detail = _need(view, current, arrived, params)
    low, high = view.limits.min_pods, view.limits.max_pods
    bounded = max(need, low) if high is None else min(max(need, low), high)
    if bounded > need:
        reason, detail = ActionReason.FLOOR, f"at least {low} pods"
    elif bounded < need:
        reason, detail = ActionReason.CEILING, f"{need} wanted, at most {high} pods"
    # Without a history the current number counts as wanted: a new controller keeps it.
    wanted = state.wanted or ((view.time_s, current),)
    wanted = _remember(wanted, view.time_s, bounded, params.stable_s)
    pods = bounded if bounded >= current else min(current, wanted[0][1])
    if high is not None and pods > high:
        pods, reason, detail = high, ActionReason.CEILING, f"at most {high} pods"
    if pods == current:
        detail = detail or "unchanged"
    if pods < current and reason not in (ActionReason.FLOOR, ActionReason.CEILING):
        reason, detail = ActionReason.IDLE, f"{pods} pods sufficed for {params.stable_s:g} s"
    if pods == current and state.current is not None:
        return (), ScalingState(wanted, current, arrived)
    surplus = max(0, min(existing, len(view.pods)) - pods)  # not those beside them in a rollout
    leaving = [DrainPod(pod, reason, detail) for pod in _drain_order(view)[:surplus]]
    set_pods = SetPods((PodShape(pods),), reason, detail)
    return (set_pods, *leaving), ScalingState(wanted, pods, arrived)


def _arrived(
    view: PoolView, state: ScalingState, params: ScalingParams
) -> tuple[tuple[float, float], ...]:
    """The work that arrived within the rate window; bounded by the number of plans in it."""
    now_s = view.time_s
    kept = tuple(each for each in state.arrived if now_s - params.rate_window_s < each[0] <= now_s)
    work_s = sum(model.arrived * min(model.hold_s, params.rate_window_s) for model in view.models)
    return (*kept, (now_s, work_s)) if work_s > 0 else kept


def _need(
    view: PoolView, current: int, arrived: tuple[tuple[float, float], ...], params: ScalingParams
) -> tuple[int, ActionReason, str]:
    """The largest number of pods needed for queued, expected or recent requests, or for copies."""
    waiting = sum(model.waiting.requests for model in view.models)
    accepting = {pod.name for pod in view.accepting}
    needs = [
        (*_for_expected(view, params), ActionReason.FORECAST),
        (*_for_copies(view), ActionReason.COPIES),
        (*_for_recent(view, params), ActionReason.IDLE),
    ]
    busy = sum(work_s for _, work_s in arrived) / params.rate_window_s
    by_rate = ceil(busy / (_slots(view) * params.busy_share) - 0.5) if accepting else 0
    needs.append((by_rate, f"recent arrivals need {busy:.2g} slots", ActionReason.ARRIVING))
    if waiting:  # first, because of equal needs the first one is the reason
        pods = _for_waiting(view, accepting, current, by_rate, params)
        needs.insert(0, (pods, f"{waiting} requests wait", ActionReason.WAITING))
    pods, detail, reason = max(needs, key=lambda each: each[0])
    return pods, reason, detail


def _for_waiting(
    view: PoolView, accepting: Collection[str], current: int, by_rate: int, params: ScalingParams
) -> int:
    """Pods to finish the queued requests in time, beside those for the rate of arrivals.

    Additional pods do not shorten a load: of a model that is not warm, one request counts. A pod's
    slots work at the same time, its loads share one link.
    """
    requests, work_s, loads, load_s = 0, 0.0, 0, 0.0
    for model in view.models:
        warm_since_s = [
            each.since_s for pod, each in model.holders.items() if each.is_warm and pod in accepting
        ]
        if warm_since_s:
            if view.time_s - min(warm_since_s) < params.max_wait_s:
                continue  # its queue is being served now
            requests += model.waiting.requests
            work_s += model.waiting.requests * model.hold_s
        elif not any(each.is_warming for each in model.holders.values()):
            loads += bool(model.waiting.requests)
            load_s += model.load_from_s(Tier.REMOTE) if model.waiting.requests else 0.0
    extra = min(requests, work_s / params.max_wait_s) / _slots(view)
    extra += min(loads, load_s / params.max_wait_s)
    # `current` includes pods that are starting.
    return max(current, 1, max(len(accepting), by_rate) + ceil(extra - 0.5))


def _for_expected(view: PoolView, params: ScalingParams) -> tuple[int, str]:
    demand = view.demand
    if demand is None or not view.models:
        return 0, ""
    windows = np.asarray(demand.horizon.windows_s)
    column = int(np.argmax(windows >= min(params.window_s, windows[-1])))
    hold_s = np.array([each.hold_s for each in view.models])
    busy = float(np.nan_to_num(demand.forecast.mean[:, column]) @ hold_s) / float(windows[column])
    likely = int((np.nan_to_num(demand.p_minute) >= params.likely).any())
    pods = max(likely, ceil(busy / (_slots(view) * params.busy_share) - likely * 1e-9 - 0.05))
    return pods, f"{busy:.2g} slots expected busy in the next {windows[column]:g} s"


def _for_copies(view: PoolView) -> tuple[int, str]:
    copies = 0
    for model in view.models:
        policy = model.spec.policy
        copies = max(copies, policy.min_copies, int(policy.preload is Preload.EAGER))
    return copies, f"a model must have {copies} copies"


def _for_recent(view: PoolView, params: ScalingParams) -> tuple[int, str]:
    last_s = max((model.last_arrival_s for model in view.models), default=0.0)
    busy = any(pod.slots_busy or pod.inferring for pod in view.pods.values())
    is_recent = busy or view.time_s - last_s < params.idle_s
    return int(is_recent), f"a request arrived within {params.idle_s:g} s"


def _slots(view: PoolView) -> int:
    return max((pod.slots for pod in view.pods.values()), default=default_slots())


def _remember(
    wanted: tuple[tuple[float, int], ...], now_s: float, pods: int, keep_s: float
) -> tuple[tuple[float, int], ...]:
    """Adds a number, and drops old entries and smaller numbers: the first entry is the maximum.

    Bounded, since numbers fall from entry to entry. Entries from the future, after the clock was
    set back, are dropped too.
    """
    kept = tuple(
        (at_s, count) for at_s, count in wanted if now_s - keep_s < at_s <= now_s and count > pods
    )
    return (*kept, (now_s, pods))


def _drain_order(view: PoolView) -> list[str]:
    """Pods by use, then by running requests, then by memory in use; ties by name."""
    uses = pod_uses(view)

    def rank(pod: PodState) -> tuple[int, int, int, str]:
        busy = pod.slots_busy + pod.inferring
        return (_DRAIN_ORDER.index(uses[pod.name]), busy, sum(pod.used_bytes.values()), pod.name)

    return [pod.name for pod in sorted(view.pods.values(), key=rank)]


def pool_problems(limits: Limits) -> list[str]:
    """Mistakes in the bounds of a pool, one line each."""
    low, high = limits.min_pods, limits.max_pods
    problems = []
    if low < 0:
        problems.append(f"min-pods must be at least 0, was {low}")
    if high is not None and high < 1:
        problems.append(f"max-pods must be at least 1, was {high}")
    if high is not None and low > high:
        problems.append(f"min-pods must be at most max-pods, was {low} with max-pods {high}")
    return problems


def contradictions(view: PoolView, loading: str = "") -> dict[str, str]:
    """By model key: why the pool cannot meet the model's limits; other models are left out.

    `loading` is the pool's loading policy; empty: it is not compared.
    """
    largest = max((pod.budget_bytes for pod in view.pods.values()), default=0)
    found = {}
    for model in view.models:
        text = loading_problem(model.spec, model.spec.pool, loading)
        if text := text or _contradiction(model, view.limits.max_pods, largest):
            found[model.key] = text
    return found


def _contradiction(model: ModelView, max_pods: int | None, max_bytes: int) -> str:
    policy = model.spec.policy
    if max_pods is not None and policy.min_copies > max_pods:
        return f"min-copies must be at most the pool's max-pods {max_pods}, was {policy.min_copies}"
    needs_copies = policy.min_copies or policy.preload is Preload.EAGER
    if needs_copies and max_bytes and model.size_bytes > max_bytes:
        return (
            f"a copy of {model.size_bytes} bytes must fit into a pod's memory, "
            f"the largest pod has {max_bytes} bytes"
        )
    return ""


class PodUse(StrEnum):
    """Swayam's states of a pod, in the order in which pods leave."""

    COLD = "cold"
    """No model on its device."""
    WARM_IDLE = "warm-idle"
    """Models on its device, none of them in use."""
    IN_USE_IDLE = "warm-in-use-idle"
    """Models in use on its device, no running request."""
    IN_USE_BUSY = "warm-in-use-busy"
    """A running request."""


_DRAIN_ORDER: Final = tuple(PodUse)


def pod_uses(view: PoolView, *, in_use_s: float = IN_USE_S) -> dict[str, PodUse]:
    """States by pod name."""
    latest_s: dict[str, float] = {}
    for model in view.models:
        for pod, residency in model.holders.items():
            if residency.is_warm:
                latest_s[pod] = max(latest_s.get(pod, NEVER_S), model.last_arrival_s)
    return {
        name: _use(pod, latest_s.get(name), view.time_s - in_use_s)
        for name, pod in view.pods.items()
    }


def _use(pod: PodState, latest_s: float | None, since_s: float) -> PodUse:
    if pod.inferring or pod.slots_busy:
        return PodUse.IN_USE_BUSY
    if latest_s is None:
        return PodUse.COLD
    return PodUse.IN_USE_IDLE if latest_s >= since_s else PodUse.WARM_IDLE
