"""How many pods a pool should have now, and which go first. A fold over views.

Up at once, by forecast and by what waits, so that a wrong forecast is never worse than reacting;
down only to the most that was wanted within `stable_s`, as Knative's window does, so that a load
that comes again within it does not flap. From zero one pod is woken for one model that waits, and
more where several do, by how long their loads take.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.planning.actions import Action, ActionReason, DrainPod, SetPods
from autoscaler.planning.pod_use import PodUse, pod_uses
from registry.domain.model import Preload, Tier

if TYPE_CHECKING:
    from collections.abc import Collection

    from autoscaler.planning.pool_view import PlannedPod, PoolView

_RANK: Final = {
    PodUse.COLD: 0,
    PodUse.WARM_IDLE: 1,
    PodUse.IN_USE_IDLE: 2,
    PodUse.IN_USE_BUSY: 3,
}
"""Who goes first when pods go."""


@dataclass(frozen=True, slots=True)
class ScalingParams:
    """Times in seconds."""

    stable_s: float = 60.0
    """For so long fewer pods must be enough before any goes."""
    idle_s: float = 120.0
    """The last pod stays for so long after the last request of all."""
    window_s: float = 60.0
    """Arrivals expected within it are what pods are for."""
    busy_share: float = 0.7
    """Of a pod's slots at most so many are meant to be taken on average."""
    likely: float = 0.5
    """A model that comes within the next minute with this probability keeps a pod."""
    patience_s: float = 2.0
    """What waits should be over within it."""
    rate_s: float = 3.0
    """Pods are at least for as much as came within it, once the first is there. Gateways tell
    arrivals once a second, so that a shorter time would see none or twice as many."""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What was wanted lately: (time, pods), times rising and pods falling."""

    wanted: tuple[tuple[float, int], ...] = ()
    current: int | None = None
    """Pods asked for last; None: nothing yet, those that are there count."""
    arrived: tuple[tuple[float, float], ...] = ()
    """(time, seconds of slots that what came by then takes of `rate_s`), of the last `rate_s`."""
    there: int | None = None
    """Those that are there, where somebody knows better than the registry."""


def scale_pods(
    view: PoolView, state: ScalingState, params: ScalingParams
) -> tuple[tuple[Action, ...], ScalingState]:
    """The pods to have: nothing where the number stays as it is."""
    there = len(view.pods) if state.there is None else state.there
    current = there if state.current is None else state.current
    arrived = _arrived(view, state, params)
    need, why, words = _need(view, current, arrived, params)
    low, high = view.limits.min_pods, view.limits.max_pods
    bounded = max(need, low) if high is None else min(max(need, low), high)
    if bounded > need:
        why, words = ActionReason.FLOOR, f"at least {low} pods"
    elif bounded < need:
        why, words = ActionReason.CEILING, f"{need} wanted, at most {high} pods"
    known = state.wanted or ((view.time_s, current),)  # whoever is new lets what there is be
    recent = _remember(known, view.time_s, bounded, params.stable_s)
    pods = bounded if bounded >= current else min(current, recent[0][1])
    if high is not None and pods > high:
        pods, why, words = high, ActionReason.CEILING, f"at most {high} pods"
    if pods == current:
        words = words or "as many as there are"
    if pods < current and why not in (ActionReason.FLOOR, ActionReason.CEILING):
        why, words = ActionReason.IDLE, f"{pods} were enough for {params.stable_s:g} s"
    if pods == current and state.current is not None:
        return (), ScalingState(recent, current, arrived)
    surplus = len(view.pods) - pods
    leaving = [DrainPod(pod, why, words) for pod in _emptiest(view, surplus)] if surplus > 0 else []
    return (SetPods(pods, why, words), *leaving), ScalingState(recent, pods, arrived)


def _arrived(
    view: PoolView, state: ScalingState, params: ScalingParams
) -> tuple[tuple[float, float], ...]:
    """What came of late, with what came since the last plan. Bounded by the ticks within it."""
    now_s = view.time_s
    kept = tuple(each for each in state.arrived if now_s - params.rate_s < each[0] <= now_s)
    work_s = sum(model.arrived * min(model.hold_s, params.rate_s) for model in view.models)
    return (*kept, (now_s, work_s)) if work_s > 0 else kept


def _need(
    view: PoolView, current: int, arrived: tuple[tuple[float, float], ...], params: ScalingParams
) -> tuple[int, ActionReason, str]:
    """Pods by what waits, by what is expected, and by copies that must be; the most of them."""
    waiting = sum(model.waiting.requests for model in view.models)
    accepting = {pod.name for pod in view.pods.values() if pod.is_accepting}
    needs = [
        (*_for_expected(view, params), ActionReason.FORECAST),
        (*_for_copies(view), ActionReason.COPIES),
        (*_for_recent(view, params), ActionReason.IDLE),
    ]
    busy = sum(work_s for _, work_s in arrived) / params.rate_s
    by_rate = ceil(busy / (_slots(view) * params.busy_share) - 0.5) if accepting else 0
    needs.append((by_rate, f"{busy:.2g} slots were asked for lately", ActionReason.ARRIVING))
    if waiting:  # first, since it names the cause where several ask for as many
        pods = _for_waiting(view, accepting, current, by_rate, params)
        needs.insert(0, (pods, f"{waiting} requests wait", ActionReason.WAITING))
    pods, words, why = max(needs, key=lambda each: each[0])
    return pods, why, words


def _for_waiting(
    view: PoolView, accepting: Collection[str], current: int, by_rate: int, params: ScalingParams
) -> int:
    """Pods so that what waits is over in time, beside those for what goes on to come.

    More of them do not make a load any shorter.
    """
    requests, work_s = 0, 0.0
    for model in view.models:
        warm_since_s = [
            each.since_s for pod, each in model.holders.items() if each.is_warm and pod in accepting
        ]
        if warm_since_s:
            if view.time_s - min(warm_since_s) < params.patience_s:
                continue  # what waited for the load is being served now
            requests += model.waiting.requests
            work_s += model.waiting.requests * model.hold_s
        elif not any(each.is_warming for each in model.holders.values()):
            requests += bool(model.waiting.requests)  # the others wait for its load
            work_s += model.load_from_s(Tier.REMOTE) if model.waiting.requests else 0.0
    extra = min(requests, work_s / params.patience_s) / _slots(view)
    # Those on their way count.
    return max(current, 1, max(len(accepting), by_rate) + ceil(extra - 0.5))


def _for_expected(view: PoolView, params: ScalingParams) -> tuple[int, str]:
    demand = view.demand
    if demand is None or not view.models:
        return 0, ""
    windows = np.asarray(demand.question.windows_s)
    column = int(np.argmax(windows >= min(params.window_s, windows[-1])))
    hold_s = np.array([each.hold_s for each in view.models])
    busy = float(np.nan_to_num(demand.forecast.mean[:, column]) @ hold_s) / float(windows[column])
    likely = int((np.nan_to_num(demand.p_minute) >= params.likely).any())
    pods = max(likely, ceil(busy / (_slots(view) * params.busy_share) - likely * 1e-9 - 0.05))
    return pods, f"{busy:.2g} slots expected busy in the next {windows[column]:g} s"


def _for_copies(view: PoolView) -> tuple[int, str]:
    must = 0
    for model in view.models:
        policy = model.spec.policy
        must = max(must, policy.min_copies, int(policy.preload is Preload.EAGER))
    return must, f"a model is to have {must} copies"


def _for_recent(view: PoolView, params: ScalingParams) -> tuple[int, str]:
    last_s = max((model.last_arrival_s for model in view.models), default=0.0)
    busy = any(pod.slots_busy or pod.inferring for pod in view.pods.values())
    is_recent = busy or view.time_s - last_s < params.idle_s
    return int(is_recent), f"a request came within {params.idle_s:g} s"


def _slots(view: PoolView) -> int:
    return max((pod.slots for pod in view.pods.values()), default=1)


def _remember(
    wanted: tuple[tuple[float, int], ...], now_s: float, pods: int, keep_s: float
) -> tuple[tuple[float, int], ...]:
    """The most that was wanted from each time of the window on; its first entry is the most of all.

    Bounded, as pods fall from entry to entry. Times to come are those of a clock that went back.
    """
    kept = tuple(
        (at_s, count) for at_s, count in wanted if now_s - keep_s < at_s <= now_s and count > pods
    )
    return (*kept, (now_s, pods))


def _emptiest(view: PoolView, count: int) -> list[str]:
    """The pods to go: least in use first, then with the least on their device; ties by name."""
    uses = pod_uses(view)

    def rank(pod: PlannedPod) -> tuple[int, int, int, str]:
        busy = pod.slots_busy + pod.inferring
        return (_RANK[uses[pod.name]], busy, sum(pod.used_bytes.values()), pod.name)

    return [pod.name for pod in sorted(view.pods.values(), key=rank)[:count]]
