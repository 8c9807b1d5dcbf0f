"""An InferenceGraph of KServe, as it is served: nodes that route a request through models."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from registry.domain.model import ModelName

ROOT: Final = "root"
KIND: Final = "graph"
"""Of a workflow's definition that is a graph."""


class RouterType(StrEnum):
    SEQUENCE = "Sequence"
    """One step after the other."""
    SWITCH = "Switch"
    """The first step whose condition the request meets."""
    ENSEMBLE = "Ensemble"
    """All steps, with one document of their responses."""
    SPLITTER = "Splitter"
    """One step by chance, as the weights say."""


@dataclass(frozen=True, slots=True)
class GraphStep:
    """Either `model` or `node` is not empty."""

    name: str = ""
    model: str = ""
    node: str = ""
    protocol: str = ""
    """`v1` or `v2`; empty: as the body is written."""
    takes_response: bool = False
    """Of the step before it, in place of the node's request."""
    maps_predictions: bool = False
    """The list `predictions` of its input is sent as `instances`."""
    weight: int = 0
    """Per cent, of a Splitter's step."""
    condition: str = ""
    is_hard: bool = False
    """Where it fails, its node does."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    router: RouterType
    steps: tuple[GraphStep, ...]


@dataclass(frozen=True, slots=True)
class GraphSpec:
    name: ModelName
    nodes: Mapping[str, GraphNode]
    timeout_s: float | None = None
    owner: str = ""
    """Uid of the cluster's object; empty: it was declared otherwise."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What of it changes nothing, for who declares it."""

    def definition(self) -> dict[str, Any]:
        """The workflow that serves it: its argument is the request's body."""
        graph = {
            name: {"router": node.router.value, "steps": [asdict(step) for step in node.steps]}
            for name, node in sorted(self.nodes.items())
        }
        text = json.dumps([graph, self.timeout_s], sort_keys=True)
        return {
            "kind": KIND, "graph": graph, "function": self.name.name, "is_stream": False,
            "sha": hashlib.sha256(text.encode()).hexdigest()[:16], "deadline_s": self.timeout_s,
            "parameters": [{"name": "body", "type": "text", "required": True}],
            "owner": self.owner,
        }  # fmt: skip


def nodes_of(graph: Mapping[str, Any]) -> dict[str, GraphNode]:
    """The nodes of a definition's `graph`."""
    return {
        name: GraphNode(
            RouterType(node["router"]), tuple(GraphStep(**step) for step in node["steps"])
        )
        for name, node in graph.items()
    }
