"""The decision for a request that a scheduler of workflows sends: a step.

Pure. The request takes a place in a pod's step queue, which the pod bounds, and no slot. The
scheduler names the pod, or leaves its choice to the routing policy; if the named pod accepts no
requests, the step is routed like any other request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState

ANY_POD: Final = "*"
"""In place of a pod's name: the routing policy chooses."""


def decision_at(pod_name: str, key: str, routed: Decision, cluster: ClusterState) -> Decision:
    """Send to the named pod, which loads the model if needed, or to any (`ANY_POD`).

    `routed`: the decision without a named pod; it stands where the request must be rejected, and
    where the pod is gone.
    """
    if pod_name == ANY_POD:
        return _at_any_pod(key, routed, cluster)
    pod = cluster.pods.get(pod_name)
    if pod is None or not pod.is_accepting or isinstance(routed, Reject):
        return routed
    residency = cluster.holders(key).get(pod_name)
    if residency is not None and residency.is_warm:
        mode, reason = LoadMode.WARM, Reason.WARM
    elif residency is not None and residency.is_warming:
        mode, reason = LoadMode.JOIN, Reason.WARMING
    else:
        mode, reason = LoadMode.LOAD, Reason.COLD
    return SendTo(pod_name, pod_name, mode, reason, takes_slot=False)


def _at_any_pod(key: str, routed: Decision, cluster: ClusterState) -> Decision:
    """In the step queue of the pod that the policy chose; it waits for a slot at no pod.

    Where it would wait for one, it is sent to the pod with the fewest inferences that holds the
    model or loads it.
    """
    if isinstance(routed, SendTo):
        if routed.entry == routed.predict:
            return SendTo(
                routed.entry, routed.predict, routed.mode, routed.reason, routed.max_other_copies,
                routed.target_ongoing, routed.forecast, routed.options, routed.loss,
                routed.is_investment, takes_slot=False,
            )  # fmt: skip
        return decision_at(routed.predict, key, routed, cluster)
    pods = cluster.warm(key) or cluster.warming(key)
    if isinstance(routed, Wait) and pods:
        pod = min(pods, key=lambda pod: (pod.inferring, pod.name))
        return decision_at(pod.name, key, routed, cluster)
    return routed
