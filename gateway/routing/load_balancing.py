"""Model-oblivious baselines: how KServe with Knative routes today.

Any pod with a free slot, chosen at random (`random`), in turn (`round-robin`) or by load
(`least-loaded`); it loads the model if it does not hold it. `random` is the default scheduler of
Liu 2025, section 6.2.
"""

from gateway.routing.decision import Decision, Reason, RequestView, SendTo, Wait
from gateway.routing.pod_selection import free_pods, least_loaded_free
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import LoadMode, PodState


def random_pod(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """Any pod with a free slot, by the request's draw."""
    del now_s
    pods = sorted(free_pods(cluster), key=lambda pod: pod.name)
    return _send(pods[int(request.draw * len(pods))]) if pods else _wait(cluster)


def round_robin(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """The pods with a free slot in turn, by name."""
    del now_s
    pods = sorted(free_pods(cluster), key=lambda pod: pod.name)
    return _send(pods[request.sequence % len(pods)]) if pods else _wait(cluster)


def least_loaded_pod(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """The pod with the smallest share of its slots taken."""
    del now_s
    pod = least_loaded_free(cluster, request.draw)
    return _wait(cluster) if pod is None else _send(pod)


def _send(pod: PodState) -> SendTo:
    return SendTo(pod.name, pod.name, LoadMode.LOAD, Reason.MODEL_OBLIVIOUS)


def _wait(cluster: ClusterState) -> Wait:
    return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
