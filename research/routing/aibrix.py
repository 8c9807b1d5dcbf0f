"""The pod with the fewest requests of those that have the model: AIBrix's `lora-affinity`.

One request in a thousand goes to one without the model that has room for it; without any that has
it, all go there; without room anywhere, to a random pod. Source: vllm-project/aibrix,
`pkg/plugins/gateway/algorithms/lora_affinity.go` (3582dccf), `least_request.go` (0140735d). An
adapter is a model here; room is memory that needs no eviction (AIBrix compares the number of
adapters with a metric that is not their maximum). The random pod is one with a free slot.
"""

from typing import Final

from gateway.routing.decision import Decision, Reason, RequestView, Wait
from gateway.routing.pod_selection import free_pods
from registry.domain.cluster import ClusterState
from research.routing.peers import fewest_requests, holding, send_to

_AFFINITY: Final = 0.999
"""AIBRIX_LORA_AFFINITY_THRESHOLD"""


def aibrix(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    prices, names = cluster.prices_at(now_s), sorted(cluster.pods)
    affine = holding(request, cluster)
    pods = [pod for name in names if (pod := cluster.pods[name]) not in affine]
    available = [pod for pod in pods if prices.has_room(pod, request.key)]
    if affine and (not available or request.draw < _AFFINITY):
        chosen = fewest_requests(affine, request.draw)
    elif available:
        chosen = fewest_requests(available, request.draw)
    elif free := sorted(free_pods(cluster), key=lambda pod: pod.name):
        chosen = free[int(request.draw * len(free))]
    else:
        return Wait(Reason.QUEUE_NO_SLOT)
    return send_to(chosen, request, cluster) if chosen.has_free_slot else Wait(Reason.QUEUE_NO_SLOT)
