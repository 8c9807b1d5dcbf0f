"""A running instance in turn, else a start where it takes the least time: ServerlessLLM.

The time of a start is what the pod's loads in progress still take, since it loads one at a time,
and the model's size over the rate of the nearest tier. Source: Fu et al. 2024, "ServerlessLLM:
low-latency serverless inference for large language models" (startup-time-optimized model
scheduling); ServerlessLLM/ServerlessLLM, `sllm/schedulers/storage_aware_scheduler.py` (10851ff4),
`sllm/routers/roundrobin_router.py` (1848fac8). A free GPU is room without an eviction. A further
instance starts on one, once those that run or start have no slot, in place of one per `target`
requests; a model without an instance starts anywhere, in place of where idle ones were stopped
after `keep_alive` seconds. No request migrates.
"""

from gateway.routing.decision import Decision, Reason, RequestView, Wait
from gateway.routing.pod_selection import free_pods
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod_state import PodState
from research.routing.peers import fewest_requests, send_to


def serverless_llm(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    free = sorted(free_pods(cluster), key=lambda pod: pod.name)
    warm, warming = cluster.warm(request.key), cluster.warming(request.key)
    if running := [pod for pod in free if pod in warm]:
        return send_to(running[request.sequence % len(running)], request, cluster)
    if starting := [pod for pod in free if pod in warming]:
        return send_to(fewest_requests(starting, request.draw), request, cluster)
    prices = cluster.prices_at(now_s)
    roomy = [pod for pod in free if prices.has_room(pod, request.key)]
    pods = roomy or ([] if warm or warming else free)
    if not pods:
        return Wait(Reason.QUEUE_NO_SLOT)
    soonest = min(pods, key=lambda pod: (start_s(pod, request.key, cluster, now_s), pod.name))
    return send_to(soonest, request, cluster)


def start_s(pod: PodState, key: str, cluster: ClusterState, now_s: float) -> float:
    """Expected time from now until the pod has loaded the model."""
    link = pod.info.link_bytes_per_s
    queued_s = sum(
        max(
            0.0,
            each.since_s + pod.estimates[other].load_from(each.loading_from, link).seconds - now_s,
        )
        for other, each in cluster.residency.on_device(pod.name).items()
        if each.loading_from is not None
    )
    held = cluster.holders(key).get(pod.name)
    tier = Tier.REMOTE if held is None else held.tier
    return queued_s + pod.estimates[key].load_from(tier, link).seconds
