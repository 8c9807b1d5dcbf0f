"""From the placed pods that run to those of the plan: one move per accelerator at a time. Pure.

A new copy is warm before the one it replaces leaves; where there is no room for both, the cheapest
leaves first. A pod that does not become warm in time ends the plan: what runs then stays.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autoscaler.placement.planners.problem import AcceleratorView, Profiles
from autoscaler.placement.planners.replanning import Move, moves, without_rate
from registry.domain.records import START_TIMEOUT_S, PlacedPod, PlacedReplica, PlacementRecord


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
    if overdue := _overdue(record, cold_since_s, now_s):
        return _given_up(record, overdue)
    warm_pods = {pod.name for pod in record.pods} - cold_since_s.keys()
    record = _updated_in_place(record)
    running = {without_rate(pod.replica): pod for pod in record.pods}
    steps = moves(
        list(running), [without_rate(each) for each in record.target], accelerators, profiles, costs
    )
    for accelerator in sorted({each.name for each in accelerators}):
        queue = [move for step in steps for move in step if move.accelerator == accelerator]
        here = [pod for pod in record.pods if pod.replica.accelerator == accelerator]
        if any(pod.name not in warm_pods for pod in here) or not queue:
            continue
        record = _carried_out(record, queue, running, warm_pods, now_s)
    gone = {pod.replica.accelerator for pod in record.pods} - {each.name for each in accelerators}
    if gone:
        pods = tuple(pod for pod in record.pods if pod.replica.accelerator not in gone)
        record = replace(record, pods=pods)
    return record


def has_arrived(record: PlacementRecord) -> bool:
    """Whether the wanted pods are those of the plan, with its batch caps and rates."""
    return {pod.replica for pod in record.pods} == set(record.target)


def _identity(replica: PlacedReplica) -> tuple[str, str, float | None]:
    """What a running pod cannot change."""
    return replica.model, replica.accelerator, replica.share_pct


def _overdue(
    record: PlacementRecord, cold_since_s: Mapping[str, float], now_s: float
) -> list[PlacedPod]:
    return [
        pod for pod in record.pods if now_s - cold_since_s.get(pod.name, now_s) > START_TIMEOUT_S
    ]


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
