"""Colocation without queueing: run where the model is warm, else start cold at once elsewhere.

Source: Liu 2025, section 4.5. A request does not wait for a warm pod whose slots are taken, nor for
a load under way at a pod without a free slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.routing.decision import Decision, Reason, SendTo, Wait
from gateway.routing.pod_selection import (
    best_cold,
    fewest_inferring,
)
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from gateway.routing.views import ClusterView, RequestView


def colocation(request: RequestView, cluster: ClusterView, now_s: float) -> Decision:
    """A warm pod with a free slot; else at once any pod with a free slot, which starts cold."""
    del now_s
    warm = cluster.warm(request.key)
    if pod := fewest_inferring(warm):
        return SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM)
    if pod := fewest_inferring(cluster.warming(request.key)):
        return SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
    cold = best_cold(cluster, request.key, request.draw)
    if cold is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    reason = Reason.COLD_WARM_BUSY if warm else Reason.COLD
    return SendTo(cold.name, cold.name, LoadMode.LOAD, reason)
