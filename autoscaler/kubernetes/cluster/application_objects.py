"""InferenceApplications as the controller reads them from the API server. Pure.

An application belongs to the pool of its annotation `pilotlight.io/pool`, as a model does; without
one to the pool `default`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from autoscaler.kubernetes.cluster.inference_services import POOL
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.inference_service.application_reader import API_VERSION, KIND, read_application

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.application import ApplicationSpec

APPLICATIONS: Final = ("pilotlight.io", "v1alpha1", "inferenceapplications")
_DEFAULT_POOL: Final = "default"


@dataclass(frozen=True, slots=True)
class ApplicationObject:
    """An InferenceApplication: the fields that the controller uses."""

    name: ModelName
    uid: str
    resource_version: str
    generation: int
    pool: str
    is_deleted: bool
    spec: ApplicationSpec | None
    """With the object's uid as its owner; None if it has mistakes."""
    problems: tuple[str, ...]
    status: Mapping[str, Any]


def read_application_object(document: Mapping[str, Any]) -> ApplicationObject:
    metadata = document["metadata"]
    spec = None
    problems: tuple[str, ...] = ()
    name = ModelName(metadata["namespace"], metadata["name"])
    try:
        found = {"apiVersion": API_VERSION, "kind": KIND, **document}
        spec = replace(read_application(found, "cluster"), owner=str(metadata["uid"]))
    except InvalidModel as error:
        problems = tuple(error.problems)
    return ApplicationObject(
        name=name,
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        pool=str((metadata.get("annotations") or {}).get(POOL, _DEFAULT_POOL)),
        is_deleted="deletionTimestamp" in metadata,
        spec=spec,
        problems=problems,
        status=document.get("status") or {},
    )
