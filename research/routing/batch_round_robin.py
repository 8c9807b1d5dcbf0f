"""Build batches at the gateway, one at a time per model, for its warm pods in turn.

A batch has the size of its pod's cap, and is closed when full or 100 ms after its first request.
Each request is sent at once; the pod collects the batch (`max-batch-wait` of 100 ms). Source:
Elvinger 2024, section 4.3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.routing.decision import Decision, Reason, RequestView, SendTo, Wait
from gateway.routing.routing_policies import colocation_queueing
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import LoadMode, PodState

MAX_BUILD_S: Final = 0.1
"""From a batch's first request until no more are added: MAX_WAIT_TIME of Elvinger 2024, 4.3.3."""
_UNPLACED_ROWS: Final = 8
"""Batch of a pod that no plan gives a cap: as a pod without measurements."""
_NAME: Final = "batch-round-robin"


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """A batch in the making, and the pod it goes to."""

    pod: str
    opened_s: float
    requests: int

    def is_open(self, batch_size: int, now_s: float) -> bool:
        """Whether the next request still belongs to this batch."""
        return self.requests < batch_size and 0 <= now_s - self.opened_s < MAX_BUILD_S


def batch_round_robin(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """The pod of the open batch, else the next one; without a warm pod as colocation-queueing."""
    warm = cluster.warm(request.key)
    if not warm:
        return colocation_queueing(request, cluster, now_s)
    pod = _pod_in_turn(_turn(request.key, cluster), warm, cluster, now_s)
    if not pod.has_free_slot:
        return Wait(Reason.QUEUE_WARM_BUSY)
    return SendTo(
        pod.name,
        pod.name,
        LoadMode.WARM,
        Reason.BATCH_TURN,
        on_sent=partial(count_in_batch, pod.name, request.key),
    )


def count_in_batch(pod: str, key: str, cluster: ClusterState, now_s: float) -> None:
    """Add a request that is sent to a pod to the model's open batch, or open the next one."""
    turn = _turn(key, cluster)
    if turn is not None and turn.pod == pod and turn.is_open(_batch_size(pod, cluster), now_s):
        turn = BatchTurn(pod, turn.opened_s, turn.requests + 1)
    else:
        turn = BatchTurn(pod, now_s, 1)
    cluster.policy_memory.setdefault(key, {})[_NAME] = turn


def _turn(key: str, cluster: ClusterState) -> BatchTurn | None:
    turn: BatchTurn | None = cluster.policy_memory.get(key, {}).get(_NAME)
    return turn


def _pod_in_turn(
    turn: BatchTurn | None, warm: Sequence[PodState], cluster: ClusterState, now_s: float
) -> PodState:
    by_name = {pod.name: pod for pod in warm}
    names = sorted(by_name)
    if turn is None:
        return by_name[names[0]]
    if turn.pod in by_name and turn.is_open(_batch_size(turn.pod, cluster), now_s):
        return by_name[turn.pod]
    return by_name[next((name for name in names if name > turn.pod), names[0])]


def _batch_size(pod: str, cluster: ClusterState) -> int:
    found = cluster.pods.get(pod)
    if cluster.placement is None or found is None:
        return _UNPLACED_ROWS
    placed = cluster.placement.pod(found.info.place)
    return placed.replica.batch_size if placed is not None else _UNPLACED_ROWS
