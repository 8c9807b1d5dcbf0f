"""Each model at one pod, which swaps models as requests come: servers of llama-swap.

llama-swap is the proxy of one machine and chooses none: its configuration says which machine
(`peers`) has a model. Here models are dealt to the pods in turn, by name. Source:
mostlygeek/llama-swap, `proxy/processgroup.go` (031580d3): a swap group runs one model at a time;
`proxy/matrix.go` (02e015fa): several, of which it stops those that cost the least. Both first let
running requests end. Pods evict by their own rule, once models need the memory.
"""

from gateway.routing.decision import Decision, Reason, RequestView, Wait
from registry.domain.cluster import ClusterState
from registry.domain.model import name_of_key
from research.routing.peers import send_to


def llama_swap(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    del now_s
    pods, name = sorted(cluster.pods), name_of_key(request.key)
    if not pods:
        return Wait(Reason.NO_PODS)
    before = sum(each < name for each in cluster.models)
    pod = cluster.pods[pods[before % len(pods)]]
    return send_to(pod, request, cluster) if pod.has_free_slot else Wait(Reason.QUEUE_NO_SLOT)
