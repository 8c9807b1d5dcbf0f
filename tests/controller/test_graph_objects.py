"""InferenceGraphs of the cluster: which are ours, their mistakes, admission."""

from typing import Any

from controller.admission import validate
from controller.objects import ClusterObjects, Key
from controller.resources import Kind, read_graph_object
from registry.domain.model import ModelName

NAME = ModelName("team", "chain")


def graph(pool: str = "default", router: str = "Sequence", **metadata: Any) -> dict[str, Any]:
    annotations = {"pilotlight.io/pool": pool} if pool else {}
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {
            "name": "chain",
            "namespace": "team",
            "uid": "uid-1",
            "generation": 2,
            "annotations": annotations,
            **metadata,
        },
        "spec": {"nodes": {"root": {"routerType": router, "steps": [{"serviceName": "a"}]}}},
    }


def test_a_graph_with_a_pool_is_served_for_its_object() -> None:
    found = read_graph_object(graph())
    assert (found.name, found.pool, found.problems) == (NAME, "default", ())
    assert found.spec is not None
    assert found.spec.definition()["owner"] == "uid-1"


def test_a_graph_without_a_pool_is_left_to_kserve() -> None:
    found = read_graph_object(graph(pool="", router="Wrong"))
    assert (found.pool, found.spec, found.problems) == ("", None, ())


def test_admission_names_the_mistakes_of_our_graphs() -> None:
    assert validate({"object": graph()}) == {"allowed": True}
    refused = validate({"object": graph(router="Chain")})
    assert not refused["allowed"]
    assert "spec.nodes.root.routerType must be one of Sequence" in refused["status"]["message"]
    leaving = graph(router="Chain", deletionTimestamp="2026-01-01T00:00:00Z")
    assert validate({"object": leaving}) == {"allowed": True}


def test_changes_and_removals_are_reported() -> None:
    objects, reported = ClusterObjects(), list[Key]()
    objects.on_change = reported.append
    objects.update(read_graph_object(graph()))
    assert reported == [Key(Kind.GRAPH)]
    objects.update(read_graph_object(graph(uid="older")), is_removed=True)
    assert NAME in objects.graphs
    objects.update(read_graph_object(graph()), is_removed=True)
    assert objects.graphs == {}
    assert reported == [Key(Kind.GRAPH)] * 2
