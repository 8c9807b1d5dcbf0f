"""The pod with the highest weighted score: llm-d's router, Gateway API inference extension.

Scores of the default profile: short queue 2, low use of the KV cache 2; affinity to LoRA adapters
has the place and weight (3) of the one for cached prefixes, which these requests do not share.
Source: kubernetes-sigs/gateway-api-inference-extension, `pkg/epp/scheduling/framework/plugins/`
`queuescorer`, `kvcacheutilizationscorer`, `loraaffinityscorer` (a172f54a), weights of
`config/charts/inferencepool/templates/epp-config.yaml` (0ae94dfb); the affinity scorer of
llm-d/llm-d-router is the same (533a218d). An adapter is a model here: loaded is active, loading is
waiting, room is memory that needs no eviction. The queue is what waits for or uses the device, the
KV cache the slots. Where the best pod is full, the request waits as it would in that pod's queue.
"""

from collections.abc import Sequence
from typing import Final

from gateway.routing.decision import Decision, Reason, RequestView, Wait
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import PodState
from research.routing.peers import send_to

_QUEUE: Final = 2.0
_KV_CACHE: Final = 2.0
_AFFINITY: Final = 3.0


def llm_d(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    pods = [cluster.pods[name] for name in sorted(cluster.pods)]
    if not pods:
        return Wait(Reason.NO_PODS)
    scores = [
        _QUEUE * _queue_score(pod, pods)
        + _KV_CACHE * (1 - pod.slots_busy / pod.slots)
        + _AFFINITY * _affinity_score(pod, request, cluster, now_s)
        for pod in pods
    ]
    highest = max(scores)
    equals = [pod for pod, score in zip(pods, scores, strict=True) if score == highest]
    best = equals[int(request.draw * len(equals))]
    return send_to(best, request, cluster) if best.has_free_slot else Wait(Reason.QUEUE_NO_SLOT)


def _queue_score(pod: PodState, pods: Sequence[PodState]) -> float:
    longest = max(each.inferring for each in pods)
    shortest = min(each.inferring for each in pods)
    return 1.0 if longest == shortest else (longest - pod.inferring) / (longest - shortest)


def _affinity_score(
    pod: PodState, request: RequestView, cluster: ClusterState, now_s: float
) -> float:
    held = cluster.holders(request.key).get(pod.name)
    if held is not None and held.is_warm:
        return 1.0
    if cluster.prices_at(now_s).has_room(pod, request.key):
        return 0.8
    return 0.6 if held is not None and held.is_warming else 0.0
