"""What a pod of a pool is to the controller. Pure.

Pods enter themselves in the registry, with an address and a node they know from the downward
API, and their lease says within seconds that they are gone. What only the cluster knows, and
the controller adds, is that somebody decided to end a pod, or that it was removed; and for pods
of Knative, that theirs is an old Revision (`revisions.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoscaler.kubernetes.models.inference_services import POOL

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE = "serving.kserve.io/inferenceservice"
REVISION = "serving.knative.dev/revision"
GENERATION = "serving.knative.dev/configurationGeneration"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, slots=True)
class PodObject:
    """A pod of a pool, reduced to what the controller decides on."""

    namespace: str
    name: str
    pool: str
    service: str
    """The InferenceService it belongs to."""
    node: str
    address: str
    """Its IP; empty before it has one."""
    is_ending: bool
    """Marked for deletion, or ended."""
    deletion_cost: int
    revision: str = ""
    """Of Knative; empty in other modes."""
    generation: int = 0
    """Of Knative's Configuration: higher in newer Revisions."""


def read_pod(document: Mapping[str, Any]) -> PodObject:
    """Read an object that passed the API server's own schema."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    status = document.get("status") or {}
    generation = labels.get(GENERATION, "")
    cost = (metadata.get("annotations") or {}).get(DELETION_COST, "0")
    return PodObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        pool=labels.get(POOL, ""),
        service=labels.get(SERVICE, ""),
        node=(document.get("spec") or {}).get("nodeName") or "",
        address=status.get("podIP") or "",
        is_ending="deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed"),
        deletion_cost=int(cost) if cost.removeprefix("-").isdigit() else 0,
        revision=labels.get(REVISION, ""),
        generation=int(generation) if generation.isdigit() else 0,
    )
