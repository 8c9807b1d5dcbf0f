"""Colocation with queueing: run where the model is warm, and wait for it if need be.

Source: Liu 2025, section 4.5. A cold start happens only when no pod is warm or warming.
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


def colocation_queueing(request: RequestView, cluster: ClusterView, now_s: float) -> Decision:
    """A warm pod, waited for if its slots are taken; a cold start only when there is none."""
    del now_s
    if warm := cluster.warm(request.key):
        if pod := fewest_inferring(warm):
            return SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM)
        return Wait(Reason.QUEUE_WARM_BUSY)
    if warming := cluster.warming(request.key):
        if pod := fewest_inferring(warming):
            return SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
        return Wait(Reason.QUEUE_WARMING)
    cold = best_cold(cluster, request.key, request.draw)
    if cold is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    return SendTo(cold.name, cold.name, LoadMode.LOAD, Reason.COLD, max_other_copies=0)
