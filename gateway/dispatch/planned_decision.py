"""The routing decision that follows from a plan: one variant at one pod. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.routing.decision import Reason, SendTo
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec


def planned_decision(spec: ModelSpec, pod: str, state: ClusterState) -> SendTo | None:
    """Send to the planned pod, warm or not; None if it takes no request now."""
    planned = state.pods.get(pod)
    if planned is None or not planned.has_free_slot:
        return None
    residency = state.holders(spec.key).get(pod)
    if residency is not None and residency.is_warm:
        return SendTo(pod, pod, LoadMode.WARM, Reason.WARM)
    if residency is not None and residency.is_warming:
        return SendTo(pod, pod, LoadMode.JOIN, Reason.WARMING)
    return SendTo(pod, pod, LoadMode.LOAD, Reason.COLD)
