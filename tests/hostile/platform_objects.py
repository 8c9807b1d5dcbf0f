"""Hostile InferenceApplications and InferenceGraphs, as YAML files and as objects of webhooks."""

from collections.abc import Mapping
from typing import Any, Final

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from registry.errors import InvalidModel
from registry.inference_service.graph_reader import is_graph, read_graph, read_graphs
from tests.hostile.mutations import Raw, damaged, mutated
from variants.application import read_application, read_applications

APPLICATION: Final = {
    "apiVersion": "pilotlight.io/v1alpha1",
    "kind": "InferenceApplication",
    "metadata": {"name": "digits", "namespace": "default"},
    "spec": {
        "classes": ["no", "yes"],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "output": "label", "deadline": "500ms", "late": "refuse", "penalty": "sigmoid",
        "policy": "sneakpeek", "window": "50ms",
        "sneakPeek": {"uri": "s3://bucket/peek", "shortCircuit": True},
    },
}  # fmt: skip
_APPLICATION_FIELDS: Final = (
    "classes", "inputs", "output", "deadline", "late", "penalty", "policy", "window", "sneakPeek",
    "uri", "shortCircuit", "name", "shape", "datatype", "spec", "metadata", "apiVersion",
)  # fmt: skip
GRAPH: Final = {
    "apiVersion": "serving.kserve.io/v1alpha1",
    "kind": "InferenceGraph",
    "metadata": {"name": "graph", "namespace": "default"},
    "spec": {
        "timeout": 30,
        "nodes": {
            "root": {
                "routerType": "Sequence",
                "steps": [
                    {"serviceName": "text", "dependency": "Hard"},
                    {"nodeName": "which", "data": "$response"},
                ],
            },
            "which": {
                "routerType": "Switch",
                "steps": [
                    {"serviceName": "text", "condition": '[@this].#(kind=="one")'},
                    {"nodeName": "split", "condition": 'instances.#(a%"*b?*").c'},
                ],
            },
            "split": {
                "routerType": "Splitter",
                "steps": [
                    {"serviceName": "text", "weight": 20},
                    {"serviceUrl": "http://text.default/v1/models/text:predict", "weight": 80},
                ],
            },
        },
    },
}
_GRAPH_FIELDS: Final = (
    "nodes", "timeout", "root", "steps", "routerType", "serviceName", "serviceUrl", "nodeName",
    "data", "weight", "condition", "dependency", "mapPredictionsToInstances", "affinity", "name",
    "minReplicas", "spec", "metadata", "routerTimeouts",
)  # fmt: skip
_DOCUMENTS: Final[Mapping[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "application": (APPLICATION, _APPLICATION_FIELDS),
    "graph": (GRAPH, _GRAPH_FIELDS),
}


def plain(value: Any) -> Any:
    """The document without what only JSON text can hold."""
    if isinstance(value, Raw):
        return value.text[:2_000].decode("latin-1")
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


@st.composite
def files(draw: DrawFn) -> bytes:
    """YAML of one of the kinds, with mutations, then damaged."""
    document, fields = _DOCUMENTS[draw(st.sampled_from(sorted(_DOCUMENTS)))]
    mutant = plain(draw(mutated(st.just(document), fields)))
    text = yaml.safe_dump(mutant, allow_unicode=True).encode("utf-8", "replace")
    return draw(damaged(st.just(text), most=2))


@st.composite
def objects(draw: DrawFn) -> Any:
    document, fields = _DOCUMENTS[draw(st.sampled_from(sorted(_DOCUMENTS)))]
    return plain(draw(mutated(st.just(document), fields)))


def read_file(content: bytes) -> str:
    sources = [("hostile", content.decode("utf-8", "replace"))]
    verdict = "read"
    for read in (read_applications, read_graphs):
        try:
            read(sources)
        except InvalidModel:
            verdict = "refused"
    return verdict


def read_object(document: Any) -> str:
    """As the controller reads an object that the API server sends it."""
    if not isinstance(document, dict):
        return "no object"
    try:
        (read_graph if is_graph(document) else read_application)(document, "hostile")
    except InvalidModel:
        return "refused"
    return "read"
