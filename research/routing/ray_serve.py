"""The less busy of two random pods that have the model: Ray Serve's model multiplexing.

Where all pods that have or load the model are full, or none has it, those with the fewest models;
after one to two seconds any. Source: ray-project/ray, `serve/_private/request_router/`:
`MultiplexMixin` of `request_router.py` (0048e228), `pow_2_router.py` (04287e4b). Here the two are
drawn among free pods, as if retries took no time; a pod's slots are `max_ongoing_requests`, its
memory bounds its models in place of `max_num_models_per_replica` (3), of which Ray evicts the
least recently used one and loads one at a time.
"""

from collections.abc import Sequence
from typing import Final

from gateway.routing.decision import Decision, Reason, RequestView, Wait
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import PodState
from research.routing.peers import holding, send_to

_MATCHING_TIMEOUT_S: Final = 1.0
"""RAY_SERVE_MULTIPLEXED_MODEL_ID_MATCHING_TIMEOUT_S; each request draws one to two times that."""


def ray_serve(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    pods = sorted(cluster.pods.values(), key=lambda pod: pod.name)
    models = {pod.name: len(cluster.residency.on_device(pod.name)) for pod in pods}
    fewest = min(models.values(), default=0)
    candidates = [holding(request, cluster), [pod for pod in pods if models[pod.name] == fewest]]
    if now_s - request.arrival_s > _MATCHING_TIMEOUT_S * (1 + request.draw):
        candidates.append(pods)
    for group in candidates:
        if free := [pod for pod in group if pod.has_free_slot]:
            return send_to(_less_busy_of_two(free, request.draw), request, cluster)
    return Wait(Reason.QUEUE_NO_SLOT)


def _less_busy_of_two(pods: Sequence[PodState], draw: float) -> PodState:
    """Two different pods by `draw`; the first of equal ones."""
    if len(pods) == 1:
        return pods[0]
    place = draw * len(pods)
    first = int(place)
    second = int((place - first) * (len(pods) - 1))
    second += second >= first
    return min(pods[first], pods[second], key=lambda pod: pod.slots_busy)
