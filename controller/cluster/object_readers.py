"""Pods, InferenceApplications and InferenceGraphs as the API server has them. Pure.

An application belongs to the pool of its annotation `pilotlight.io/pool`, as a model does; without
one to the pool `default`. Graphs with the annotation are served by that pool; all others are
KServe's alone, and so is the status of all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from controller.cluster.inference_services import POOL
from registry.domain.application import ApplicationSpec
from registry.domain.graph import GraphSpec
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.inference_service import application_reader, graph_reader
from registry.inference_service.application_reader import read_application
from registry.inference_service.graph_reader import read_graph

SERVICE = "serving.kserve.io/inferenceservice"
REVISION = "serving.knative.dev/revision"
GENERATION = "serving.knative.dev/configurationGeneration"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
APPLICATIONS: Final = ("pilotlight.io", "v1alpha1", "inferenceapplications")
_DEFAULT_POOL: Final = "default"
_Spec = TypeVar("_Spec", ApplicationSpec, GraphSpec)
GRAPHS: Final = ("serving.kserve.io", "v1alpha1", "inferencegraphs")


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
    head = (application_reader.API_VERSION, application_reader.KIND)
    spec, problems = _read_spec(read_application, head, document)
    return ApplicationObject(
        name=ModelName(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        pool=str((metadata.get("annotations") or {}).get(POOL, _DEFAULT_POOL)),
        is_deleted="deletionTimestamp" in metadata,
        spec=spec,
        problems=problems,
        status=document.get("status") or {},
    )


@dataclass(frozen=True, slots=True)
class GraphObject:
    """An InferenceGraph: the fields that the controller uses."""

    name: ModelName
    uid: str
    pool: str
    """Empty: it is not ours."""
    is_deleted: bool
    spec: GraphSpec | None
    """With the object's uid as its owner; None if it has mistakes or is not ours."""
    problems: tuple[str, ...]


def read_graph_object(document: Mapping[str, Any]) -> GraphObject:
    metadata = document["metadata"]
    pool = str((metadata.get("annotations") or {}).get(POOL, ""))
    head = (graph_reader.API_VERSION, graph_reader.KIND)
    spec, problems = _read_spec(read_graph, head, document) if pool else (None, ())
    return GraphObject(
        name=ModelName(metadata["namespace"], metadata["name"]),
        uid=str(metadata.get("uid", "")),
        pool=pool,
        is_deleted="deletionTimestamp" in metadata,
        spec=spec,
        problems=problems,
    )


def _read_spec(
    read: Callable[[dict[str, Any], str], _Spec], head: tuple[str, str], document: Mapping[str, Any]
) -> tuple[_Spec | None, tuple[str, ...]]:
    """With the object's uid as its owner, or the mistakes. `head`: where lists leave it out."""
    api_version, kind = head
    try:
        spec = read({"apiVersion": api_version, "kind": kind, **document}, "cluster")
    except InvalidModel as error:
        return None, tuple(error.problems)
    return replace(spec, owner=str(document["metadata"].get("uid", ""))), ()
