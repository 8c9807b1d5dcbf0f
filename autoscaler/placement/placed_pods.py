"""When to plan a placement anew, and the moves from running pods to a plan's. Pure.

A new copy is warm before the one it replaces leaves; where there is no room for both, the cheapest
leaves first. A pod that does not become warm in time ends the plan: what runs then stays.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from autoscaler.placement.placement_input import PlacementInput
from autoscaler.placement.plan import replica_order
from autoscaler.placement.problem import FITS_PCT, AcceleratorView, Profiles
from registry.domain.records import START_TIMEOUT_S, PlacedPod, PlacedReplica, PlacementRecord

_OFF_RATIO: Final = 0.2
"""How far a forecast may be from the planned rate."""
_TIMES_OFF: Final = 2
_SLOWER_RATIO: Final = 1.25
_SLOW_FOR_S: Final = 60.0
_HORIZON_S: Final = 300.0
"""For how long a gain is expected to last."""


@dataclass(frozen=True, slots=True)
class PlannedFor:
    """What a plan was made for, and what has happened since. A fold over ticks."""

    rates_rps: Mapping[str, float]
    slos_s: Mapping[str, float]
    accelerators: frozenset[str]
    times_off: int = 0
    """Consecutive ticks at which a forecast was off."""
    slow_since_s: Mapping[str, float] = field(default_factory=dict)
    """By model: since when its latency exceeds the prediction."""


def planned_for(inputs: PlacementInput) -> PlannedFor:
    return PlannedFor(
        {each.model: each.rate_rps for each in inputs.workloads},
        {each.model: each.slo_s for each in inputs.workloads},
        frozenset(inputs.kinds),
    )


def should_replan(
    state: PlannedFor, inputs: PlacementInput, latency_ratios: Mapping[str, float], now_s: float
) -> tuple[PlannedFor, str]:
    """The state after a tick, and why to plan anew; empty: the plan still holds.

    Rates are 0.9-quantile forecasts; latencies are measured over predicted ones.
    """
    seen = planned_for(inputs)
    rates = seen.rates_rps
    off = sorted(
        model
        for model, rate in rates.items()
        if abs(rate - state.rates_rps.get(model, rate))
        > _OFF_RATIO * max(state.rates_rps.get(model, rate), 1e-9)
    )
    slow_since_s = {
        model: state.slow_since_s.get(model, now_s)
        for model, ratio in latency_ratios.items()
        if ratio > _SLOWER_RATIO
    }
    state = replace(state, times_off=state.times_off + 1 if off else 0, slow_since_s=slow_since_s)
    slow = [
        f"{model} ({latency_ratios[model]:.2f} times)"
        for model, since_s in sorted(slow_since_s.items())
        if now_s - since_s >= _SLOW_FOR_S
    ]
    return state, _reason(state, seen, off, slow)


def _reason(state: PlannedFor, seen: PlannedFor, off: Sequence[str], slow: Sequence[str]) -> str:
    slos = seen.slos_s
    if changed := sorted(seen.accelerators ^ state.accelerators):
        return f"accelerators came or went: {', '.join(changed)}"
    if changed := sorted(seen.rates_rps.keys() ^ state.rates_rps.keys()):
        return f"models came or went: {', '.join(changed)}"
    if changed := sorted(model for model in slos if slos[model] != state.slos_s[model]):
        return f"the SLO changed of {', '.join(changed)}"
    if state.times_off >= _TIMES_OFF:
        return f"the forecast is over {_OFF_RATIO:.0%} off the planned rate of {', '.join(off)}"
    if slow:
        return f"latency exceeds the prediction for {_SLOW_FOR_S:g} s: {', '.join(slow)}"
    return ""


def latency_scales(
    scales: Mapping[str, float], latency_ratios: Mapping[str, float]
) -> dict[str, float]:
    """By which factors the next plan takes profiled latencies, from those of the last plan.

    `latency_ratios`: measured latencies over those predicted with `scales`. A model that is slower
    than predicted takes its ratio; one that is scaled follows it down again. 1 is left out.
    """
    found = dict(scales)
    for model, ratio in latency_ratios.items():
        scale = scales.get(model, 1.0)
        if ratio > _SLOWER_RATIO or (ratio < 1 and scale > 1):
            found[model] = max(1.0, scale * ratio)
    return {model: scale for model, scale in found.items() if scale > 1}


def should_adopt(gain_rps: float, moving_costs_requests: float) -> bool:
    """Whether a plan gains more requests than its moves cost."""
    return gain_rps * _HORIZON_S > moving_costs_requests


@dataclass(frozen=True, slots=True)
class Move:
    """One change of one accelerator. A replica is warm before the one it replaces leaves."""

    starts: PlacedReplica | None
    stops: PlacedReplica | None


def moves(
    current: Sequence[PlacedReplica],
    wanted: Sequence[PlacedReplica],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    costs: Mapping[str, float],
) -> dict[str, list[Move]]:
    """By accelerator: the steps from the current replicas to the wanted ones, in order.

    A replica starts before one leaves. Where there is no room for both, the cheapest to move
    leaves first; `costs`: by model.
    """
    kinds = {each.name: each.kind for each in accelerators}

    def memory(replica: PlacedReplica) -> float:
        point = profiles.point(replica.model, kinds[replica.accelerator], replica.batch_size)
        return point.memory_pct if point is not None else 0.0

    return {
        name: _moves_on(
            [each for each in current if each.accelerator == name],
            [each for each in wanted if each.accelerator == name],
            memory,
            costs,
        )
        for name in sorted(kinds)
    }


def without_rate(replica: PlacedReplica) -> PlacedReplica:
    """To compare replicas whose parts of the rate differ."""
    return replace(replica, rate_rps=0.0)


def _same(one: PlacedReplica, other: PlacedReplica) -> bool:
    return without_rate(one) == without_rate(other)


def _moves_on(
    running: Sequence[PlacedReplica],
    wanted: Sequence[PlacedReplica],
    memory: Callable[[PlacedReplica], float],
    costs: Mapping[str, float],
) -> list[Move]:
    leaving = [each for each in running if not any(_same(each, other) for other in wanted)]
    coming = [each for each in wanted if not any(_same(each, other) for other in running)]
    leaving.sort(key=lambda each: (costs.get(each.model, 0.0), *replica_order(each)))
    coming.sort(key=replica_order)
    used = sum(map(memory, running))
    found = []
    for new in coming:
        while leaving and used + memory(new) > FITS_PCT:
            cheapest = leaving.pop(0)
            used -= memory(cheapest)
            found.append(Move(None, cheapest))
        used += memory(new)
        replaced = next((each for each in leaving if each.model == new.model), None)
        if replaced is not None:
            leaving.remove(replaced)
            used -= memory(replaced)
        found.append(Move(new, replaced))
    found += [Move(None, each) for each in leaving]
    return found


def next_step(
    record: PlacementRecord,
    cold_since_s: Mapping[str, float],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    costs: Mapping[str, float],
    now_s: float,
) -> PlacementRecord:
    """The record with the pods that are wanted next; equal if nothing is to be done now.

    `cold_since_s`: of the pods that do not hold their model, by name; `costs`: of moving a copy, by
    model.
    """
    if overdue := [
        pod for pod in record.pods if now_s - cold_since_s.get(pod.name, now_s) > START_TIMEOUT_S
    ]:
        return _given_up(record, overdue)
    warm_pods = {pod.name for pod in record.pods} - cold_since_s.keys()
    record = _updated_in_place(record)
    running = {without_rate(pod.replica): pod for pod in record.pods}
    wanted = [without_rate(each) for each in record.target]
    queues = moves(list(running), wanted, accelerators, profiles, costs)
    for accelerator, queue in queues.items():
        here = [pod for pod in record.pods if pod.replica.accelerator == accelerator]
        if any(pod.name not in warm_pods for pod in here) or not queue:
            continue
        record = _carried_out(record, queue, running, warm_pods, now_s)
    pods = tuple(pod for pod in record.pods if pod.replica.accelerator in queues)
    return replace(record, pods=pods)


def has_arrived(record: PlacementRecord) -> bool:
    """Whether the wanted pods are those of the plan, with its batch caps and rates."""
    return {pod.replica for pod in record.pods} == set(record.target)


def _identity(replica: PlacedReplica) -> tuple[str, str, float | None]:
    """What a running pod cannot change."""
    return replica.model, replica.accelerator, replica.share_pct


def _given_up(record: PlacementRecord, overdue: Sequence[PlacedPod]) -> PlacementRecord:
    """Without the pods that cannot start, and with the others as the new target."""
    pods = tuple(pod for pod in record.pods if pod not in overdue)
    names = ", ".join(f"{pod.name} ({pod.replica.model})" for pod in overdue)
    reason = f"not warm within {START_TIMEOUT_S:g} s: {names}; the pods that run stay"
    return replace(record, pods=pods, target=tuple(pod.replica for pod in pods), reason=reason)


def _updated_in_place(record: PlacementRecord) -> PlacementRecord:
    """Batch caps and rates change without a new pod."""
    target = {_identity(each): each for each in record.target}
    pods = tuple(
        replace(pod, replica=target.get(_identity(pod.replica), pod.replica)) for pod in record.pods
    )
    return replace(record, pods=pods)


def _carried_out(
    record: PlacementRecord,
    queue: Sequence[Move],
    running: Mapping[PlacedReplica, PlacedPod],
    warm_pods: Collection[str],
    now_s: float,
) -> PlacementRecord:
    """The record after the first move of an accelerator, if that may be made now."""
    first = queue[0]
    if first.starts is not None:
        wanted = next(each for each in record.target if without_rate(each) == first.starts)
        pod = PlacedPod(f"placed-{record.next_number}", wanted, now_s)
        return replace(record, pods=(*record.pods, pod), next_number=record.next_number + 1)
    assert first.stops is not None
    makes_room = any(move.starts is not None for move in queue)
    if not makes_room and _is_awaited(record, first.stops.model, warm_pods):
        return record
    leaving = running[first.stops]
    return replace(record, pods=tuple(pod for pod in record.pods if pod is not leaving))


def _is_awaited(record: PlacementRecord, model: str, warm_pods: Collection[str]) -> bool:
    """Whether a copy of the model that the plan wants is not warm yet."""
    warm = {_identity(pod.replica) for pod in record.pods if pod.name in warm_pods}
    return any(each.model == model and _identity(each) not in warm for each in record.target)
