"""Colocation: prefer pods where the model is warm, with or without queueing for a slot there.

Source: Liu 2025, section 4.5. If no warm or warming pod has a free slot, `colocation` starts cold
at another pod at once. `colocation_queueing` starts cold only if no pod is warm or warming.
"""

from gateway.routing.decision import Decision, Reason, RequestView, SendTo, Wait
from gateway.routing.pod_selection import best_cold, fewest_inferring
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import LoadMode


def colocation(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """A warm or warming pod with a free slot, else a cold start at any pod with a free slot."""
    del now_s
    if free := cluster.free_warm(request.key).first(1):
        return SendTo(free[0].name, free[0].name, LoadMode.WARM, Reason.WARM)
    if pod := fewest_inferring(cluster.warming(request.key)):
        return SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
    cold = best_cold(cluster, request.key, request.draw)
    if cold is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    reason = Reason.COLD_WARM_BUSY if cluster.warm(request.key) else Reason.COLD
    return SendTo(cold.name, cold.name, LoadMode.LOAD, reason)


def colocation_queueing(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """A warm pod, else a warming pod, queueing if it has no free slot; else a cold start."""
    del now_s
    if cluster.warm(request.key):
        if free := cluster.free_warm(request.key).first(1):
            return SendTo(free[0].name, free[0].name, LoadMode.WARM, Reason.WARM)
        return Wait(Reason.QUEUE_WARM_BUSY)
    if warming := cluster.warming(request.key):
        if pod := fewest_inferring(warming):
            return SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
        return Wait(Reason.QUEUE_WARMING)
    cold = best_cold(cluster, request.key, request.draw)
    if cold is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    return SendTo(cold.name, cold.name, LoadMode.LOAD, Reason.COLD, max_other_copies=0)
