"""A pool's pod as the controller reads it from the API server. Pure.

Pods register themselves, with address and node from the downward API, and their lease expires
seconds after they end. The controller adds the facts that only the API server has: deletion marks,
removed pods and, in Knative mode, outdated Revisions (`revisions.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoscaler.kubernetes.cluster.inference_services import POOL

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE = "serving.kserve.io/inferenceservice"
REVISION = "serving.knative.dev/revision"
GENERATION = "serving.knative.dev/configurationGeneration"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, slots=True)
class PodObject:
    """A pod of a pool: the fields that the controller uses."""

    namespace: str
    name: str
    uid: str
    pool: str
    service: str
    """The InferenceService it belongs to."""
    is_ending: bool
    """Marked for deletion, or finished."""
    deletion_cost: int
    revision: str = ""
    """Knative Revision; empty in other modes."""
    generation: int = 0
    """Generation of the Knative Configuration: higher in newer Revisions."""


def read_pod(document: Mapping[str, Any]) -> PodObject:
    """Read an object that passed the API server's schema validation."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    status = document.get("status") or {}
    generation = labels.get(GENERATION, "")
    cost = (metadata.get("annotations") or {}).get(DELETION_COST, "0")
    return PodObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        pool=labels.get(POOL, ""),
        service=labels.get(SERVICE, ""),
        is_ending="deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed"),
        deletion_cost=int(cost) if cost.removeprefix("-").isdigit() else 0,
        revision=labels.get(REVISION, ""),
        generation=int(generation) if generation.isdigit() else 0,
    )
