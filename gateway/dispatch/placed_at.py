"""The decision for a request that a scheduler of workflows has placed at a pod.

Pure. The request waits for a slot of that pod; if the pod accepts no requests, it is routed like
any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState


def decision_at(pod_name: str, key: str, routed: Decision, cluster: ClusterState) -> Decision:
    """Send to the named pod, which loads the model if needed, or wait for a slot there.

    `routed`: the decision without a named pod; it stands where the request must be rejected, and
    where the pod is gone.
    """
    pod = cluster.pods.get(pod_name)
    if pod is None or not pod.is_accepting or isinstance(routed, Reject):
        return routed
    if not pod.has_free_slot:
        return Wait(Reason.QUEUE_NO_SLOT)
    residency = cluster.holders(key).get(pod_name)
    if residency is not None and residency.is_warm:
        return SendTo(pod_name, pod_name, LoadMode.WARM, Reason.WARM)
    if residency is not None and residency.is_warming:
        return SendTo(pod_name, pod_name, LoadMode.JOIN, Reason.WARMING)
    return SendTo(pod_name, pod_name, LoadMode.LOAD, Reason.COLD)
