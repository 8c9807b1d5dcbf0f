"""What the routing policies of peers share.

Each is the peer's choice of a pod, as its code makes it, in a pool whose pods hold several models
within their memory and take as many requests as they have slots. All get the gateway's queue, in
which a request waits where a peer's would wait at a full pod, and is decided anew; all get the
pods' eviction of idle models, where most of the peers evict the least recently used one.
"""

from collections.abc import Sequence

from gateway.routing.decision import Reason, RequestView, SendTo
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import LoadMode, PodState


def send_to(pod: PodState, request: RequestView, cluster: ClusterState) -> SendTo:
    """Run at the pod, which loads the model unless it has or loads it."""
    held = cluster.holders(request.key).get(pod.name)
    if held is not None and held.is_warm:
        reason = Reason.WARM
    else:
        reason = Reason.WARMING if held is not None and held.is_warming else Reason.COLD
    return SendTo(pod.name, pod.name, LoadMode.LOAD, reason)


def holding(request: RequestView, cluster: ClusterState) -> list[PodState]:
    """The pods that have the model on their device, or load it, by name."""
    pods = [*cluster.warm(request.key), *cluster.warming(request.key)]
    return sorted(pods, key=lambda pod: pod.name)


def fewest_requests(pods: Sequence[PodState], draw: float) -> PodState:
    """The pod with the fewest requests; of equal ones, in the order given, one by `draw`."""
    fewest = min(pod.slots_busy for pod in pods)
    equals = [pod for pod in pods if pod.slots_busy == fewest]
    return equals[int(draw * len(equals))]
