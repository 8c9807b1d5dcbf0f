"""Central registry with remote proxying: pre- and postprocess anywhere, infer where it is warm.

Source: Liu 2025, section 4.6. The entry pod holds the slot; the predict pod is a warm or warming
one with fewer ongoing requests than the target. If there is none, the entry pod loads the model
itself, unless another gateway has meanwhile begun a load that this decision did not see; it is then
a pod without the model and below the target, since the registry refuses others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.routing.decision import Decision, Reason, SendTo, Wait
from gateway.routing.pod_selection import least_loaded, least_loaded_free
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.routing.decision import RequestView
    from registry.domain.cluster import ClusterState
    from registry.domain.pod_state import PodState


def remote_proxy(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """Entry: the least loaded pod; predict: the least busy warm or warming pod below the target."""
    del now_s
    entry = least_loaded_free(cluster, request.draw)
    if entry is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    warm = cluster.warm(request.key)
    warming = cluster.warming(request.key)
    predict = least_busy_below(request.target_ongoing, warm, warming)
    if predict is None:
        return _load_another_copy(request, cluster, warm, warming)
    is_remote = predict.name != entry.name
    if predict in warm:
        mode, reason = LoadMode.WARM, Reason.WARM_REMOTE if is_remote else Reason.WARM
    else:
        mode, reason = LoadMode.JOIN, Reason.WARMING_REMOTE if is_remote else Reason.WARMING
    return SendTo(entry.name, predict.name, mode, reason, target_ongoing=request.target_ongoing)


def _load_another_copy(
    request: RequestView,
    cluster: ClusterState,
    warm: Sequence[PodState],
    warming: Sequence[PodState],
) -> Decision:
    holding = {pod.name for pod in (*warm, *warming)}
    loading = _free_without_model(request, cluster, holding)
    if loading is None:
        if warm:
            return Wait(Reason.QUEUE_WARM_BUSY)
        return Wait(Reason.QUEUE_WARMING if warming else Reason.QUEUE_TARGET)
    return SendTo(
        loading.name, loading.name, LoadMode.LOAD,
        Reason.COLD_WARM_BUSY if holding else Reason.COLD,
        max_other_copies=len(holding), target_ongoing=request.target_ongoing,
    )  # fmt: skip


def _free_without_model(
    request: RequestView, cluster: ClusterState, holding: set[str]
) -> PodState | None:
    """The least loaded free pod without the model and below the target, if any."""
    target_ongoing = request.target_ongoing
    first = least_loaded_free(cluster, request.draw, holding)
    if first is None or first.inferring < target_ongoing:
        return first
    below = [
        pod
        for pod in cluster.pods.values()
        if pod.inferring < target_ongoing and pod.has_free_slot and pod.name not in holding
    ]
    return least_loaded(below, request.draw) if below else None


def least_busy_below(
    target_ongoing: int, warm: Sequence[PodState], warming: Sequence[PodState]
) -> PodState | None:
    """The pod with the fewest ongoing requests below the target; ties: warm first, then by name."""
    best = _least_busy(warm, target_ongoing)
    return _least_busy(warming, best.inferring if best else target_ongoing) or best


def _least_busy(pods: Sequence[PodState], below: int) -> PodState | None:
    best: PodState | None = None
    fewest = below
    for pod in pods:
        inferring = pod.inferring
        if inferring < fewest or (inferring == fewest and best and pod.name < best.name):
            best, fewest = pod, inferring
    return best
