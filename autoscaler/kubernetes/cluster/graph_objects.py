"""InferenceGraphs of KServe as the controller reads them from the API server. Pure.

Those with the annotation `pilotlight.io/pool` are served by that pool; all others are KServe's
alone, and so is the status of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from autoscaler.kubernetes.cluster.inference_services import POOL
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.inference_service.graph_reader import API_VERSION, KIND, read_graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.graph import GraphSpec

GRAPHS: Final = ("serving.kserve.io", "v1alpha1", "inferencegraphs")


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
    spec = None
    problems: tuple[str, ...] = ()
    if pool:
        try:
            found = {"apiVersion": API_VERSION, "kind": KIND, **document}
            spec = replace(read_graph(found, "cluster"), owner=str(metadata.get("uid", "")))
        except InvalidModel as error:
            problems = tuple(error.problems)
    return GraphObject(
        name=ModelName(metadata["namespace"], metadata["name"]),
        uid=str(metadata.get("uid", "")),
        pool=pool,
        is_deleted="deletionTimestamp" in metadata,
        spec=spec,
        problems=problems,
    )
