"""Any pod with a free slot, whatever models it holds: Knative's activator.

The pool's servers are one revision, whose container concurrency is the number of a pod's slots: up
to three, the first free pod by name; above, the free pods in turn. Source: knative/serving,
`pkg/activator/net/throttler.go` (9c236737), `lb_policy.go` (188bf184). Without a container
concurrency, which is not played here, it takes the less busy of two random pods.
"""

from functools import partial
from typing import Final

from gateway.routing.decision import Decision, Reason, RequestView, Wait
from gateway.routing.pod_selection import free_pods
from registry.domain.cluster import ClusterState
from research.routing.peers import send_to

_FIRST_AVAILABLE: Final = 3
"""Container concurrency up to which the first free pod is taken."""
_REVISION: Final = ""
"""In place of a model's key: the turn is that of all models."""
_NAME: Final = "knative"


def knative(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    del now_s
    free = sorted(free_pods(cluster), key=lambda pod: pod.name)
    if not free:
        return Wait(Reason.QUEUE_NO_SLOT)
    if max(pod.slots for pod in cluster.pods.values()) <= _FIRST_AVAILABLE:
        return send_to(free[0], request, cluster)
    last = cluster.policy_memory.get(_REVISION, {}).get(_NAME, "")
    sent = send_to(next((pod for pod in free if pod.name > last), free[0]), request, cluster)
    sent.on_sent = partial(_end_turn, sent.entry)
    return sent


def _end_turn(pod: str, cluster: ClusterState, now_s: float) -> None:
    del now_s
    cluster.policy_memory.setdefault(_REVISION, {})[_NAME] = pod
