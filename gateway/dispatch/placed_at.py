"""Decisions for a pod that others have chosen: a scheduler of workflows, or an application's plan.

A workflow's step takes a place in a pod's step queue, which the pod bounds, and no slot. The
scheduler names the pod, or leaves its choice to the routing policy; if the named pod accepts no
requests, the step is routed like any other request. A planned request takes a slot. Pure.
"""

from dataclasses import replace
from typing import Final

from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec
from registry.domain.pod_state import LoadMode

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
    return _send_to(pod_name, key, cluster, takes_slot=False)


def _at_any_pod(key: str, routed: Decision, cluster: ClusterState) -> Decision:
    """In the step queue of the pod that the policy chose; it waits for a slot at no pod.

    Where it would wait for one, it is sent to the pod with the fewest inferences that holds the
    model or loads it.
    """
    if isinstance(routed, SendTo):
        if routed.entry == routed.predict:
            return replace(routed, takes_slot=False)
        return decision_at(routed.predict, key, routed, cluster)
    pods = cluster.warm(key) or cluster.warming(key)
    if isinstance(routed, Wait) and pods:
        pod = min(pods, key=lambda pod: (pod.inferring, pod.name))
        return decision_at(pod.name, key, routed, cluster)
    return routed


def planned_decision(spec: ModelSpec, pod: str, state: ClusterState) -> SendTo | None:
    """Send to the planned pod, warm or not; None if it takes no request now."""
    planned = state.pods.get(pod)
    if planned is None or not planned.has_free_slot:
        return None
    return _send_to(pod, spec.key, state, takes_slot=True)


def _send_to(pod: str, key: str, cluster: ClusterState, *, takes_slot: bool) -> SendTo:
    residency = cluster.holders(key).get(pod)
    if residency is not None and residency.is_warm:
        mode, reason = LoadMode.WARM, Reason.WARM
    elif residency is not None and residency.is_warming:
        mode, reason = LoadMode.JOIN, Reason.WARMING
    else:
        mode, reason = LoadMode.LOAD, Reason.COLD
    return SendTo(pod, pod, mode, reason, takes_slot=takes_slot)
