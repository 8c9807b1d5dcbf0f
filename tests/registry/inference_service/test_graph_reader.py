"""InferenceGraph YAML: the four routers, and all mistakes together."""

import json

import pytest

from registry.domain.graph import GraphNode, GraphStep, RouterType, nodes_of
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.inference_service.graph_reader import read_graphs
from registry.inference_service.reader import read_documents

FULL = """
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: animals, namespace: zoo}
spec:
  timeout: 30
  minReplicas: 2
  nodes:
    root:
      routerType: Sequence
      steps:
        - {serviceName: finder, name: find, dependency: Hard}
        - {nodeName: breeds, data: $response, condition: 'predictions.#(=="dog")'}
    breeds:
      routerType: Switch
      steps:
        - {serviceName: dogs, condition: '[@this].#(kind=="dog")'}
        - {nodeName: both, condition: "predictions"}
    both:
      routerType: Ensemble
      steps:
        - {serviceUrl: "http://cats.zoo.svc.cluster.local/v1/models/cats:predict", name: cats}
        - {serviceUrl: "http://dogs-predictor.zoo.example.com/v2/models/dogs/infer"}
        - {nodeName: split}
    split:
      routerType: Splitter
      steps:
        - {serviceName: one, weight: 30}
        - {serviceName: two, weight: 70}
"""


def test_reads_all_routers() -> None:
    [graph] = read_graphs([("graph.yaml", FULL)])
    assert graph.name == ModelName("zoo", "animals")
    assert graph.timeout_s == 30
    assert graph.nodes["root"] == GraphNode(
        RouterType.SEQUENCE,
        (
            GraphStep("find", "finder", is_hard=True),
            GraphStep(node="breeds", takes_response=True, condition='predictions.#(=="dog")'),
        ),
    )
    cats, dogs, _ = graph.nodes["both"].steps
    assert (cats.model, cats.protocol) == ("cats", "v1")
    assert (dogs.model, dogs.protocol) == ("dogs", "v2")
    assert [step.weight for step in graph.nodes["split"].steps] == [30, 70]


def test_a_definition_keeps_the_graph() -> None:
    [graph] = read_graphs([("graph.yaml", FULL)])
    stored = json.loads(json.dumps(graph.definition()))
    assert nodes_of(stored["graph"]) == graph.nodes
    assert stored == graph.definition()


def test_graphs_are_left_out_of_models() -> None:
    assert read_documents([("graph.yaml", FULL)]) == []


MISTAKES = {
    "routerType: Switch": ("routerType: Choice", "breeds.routerType must be one of Sequence"),
    "    root:": ("    first:", "spec.nodes must have a node `root`"),
    "{nodeName: split}": ("{nodeName: root}", "must not lead to themselves"),
    "nodeName: both,": ("nodeName: nobody,", "must name one of the nodes"),
    "weight: 70": ("weight: 71", "weights that sum to 100, was [30, 71]"),
    "name: cats}": ("name: cats, weight: 1.5}", "whole number from 0 to 100, was 1.5"),
    "data: $response": ("data: [$response]", "must be $request or $response"),
    "dependency: Hard": ("dependency: hard", "must be Soft or Hard, was 'hard'"),
    "name: find,": ("name: find, condition: a,", "must stand at a later step"),
    "- {serviceName: one, weight: 30}": (
        "- {serviceName: one, nodeName: both, weight: 30}",
        "must have one of serviceName",
    ),
    "cats.zoo.svc": ("cats.farm.svc", "other services are not called"),
    "v2/models/dogs/infer": ("v2/models/dogs/generate", "other services are not called"),
    '[@this].#(kind=="dog")': ("{ .input == 1 }", "outside of the subset of GJSON"),
    'condition: "predictions"': ("weight: 3", "breeds.steps[1].condition must be a GJSON path"),
    "timeout: 30": ("timeout: 0", "1 to 3600 whole seconds, was 0"),
    "minReplicas: 2": ("replicas: 2", "spec may have the fields"),
    "serving.kserve.io/v1alpha1": ("serving.kserve.io/v1beta1", "apiVersion must be"),
}


@pytest.mark.parametrize("seen", MISTAKES)
def test_a_mistake_is_named(seen: str) -> None:
    replacement, message = MISTAKES[seen]
    assert seen in FULL
    with pytest.raises(InvalidModel) as caught:
        read_graphs([("graph.yaml", FULL.replace(seen, replacement, 1))])
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("seen", "replacement", "warning"),
    [
        pytest.param(
            "weight: 30",
            "weight: 30, condition: '[@this].#(kind==\"dog\")'",
            "split.steps[0].condition changes nothing in a node of type Splitter",
            id="condition-of-a-splitter",
        ),
        pytest.param(
            "{nodeName: split}",
            "{nodeName: split, condition: a}",
            "both.steps[2].condition changes nothing in a node of type Ensemble",
            id="condition-of-an-ensemble",
        ),
        pytest.param(
            "weight: 30",
            "weight: 30, mapPredictionsToInstances: true",
            "split.steps[0].mapPredictionsToInstances changes nothing",
            id="mapping-of-a-splitter",
        ),
        pytest.param(
            "data: $response",
            "data: $response.predictions",
            "root.steps[1].data '$response.predictions' is not $response",
            id="data-of-another-form",
        ),
        pytest.param(
            "timeout: 30",
            "timeout: 30\n  routerTimeouts: {serviceClient: 5}",
            "routerTimeouts.serviceClient has no effect",
            id="time-of-a-step",
        ),
    ],
)
def test_what_kserves_router_ignores_is_a_warning(
    seen: str, replacement: str, warning: str
) -> None:
    assert seen in FULL
    [graph] = read_graphs([("graph.yaml", FULL.replace(seen, replacement, 1))])
    [plain] = read_graphs([("graph.yaml", FULL)])
    [found] = set(graph.warnings) - set(plain.warnings)
    assert warning in found
    assert graph.definition()["graph"]


def test_predictions_are_mapped_in_sequences_only() -> None:
    mapped = "mapPredictionsToInstances: true"
    text = FULL.replace("data: $response", f"data: $response, {mapped}")
    text = text.replace("weight: 30", f"weight: 30, {mapped}")
    [graph] = read_graphs([("graph.yaml", text)])
    nodes = nodes_of(json.loads(json.dumps(graph.definition()))["graph"])
    assert [step.maps_predictions for step in nodes["root"].steps] == [False, True]
    assert not any(step.maps_predictions for step in nodes["split"].steps)


def test_a_definition_without_later_fields_is_read() -> None:
    [graph] = read_graphs([("graph.yaml", FULL)])
    stored = graph.definition()["graph"]
    for node in stored.values():
        for step in node["steps"]:
            del step["maps_predictions"]
    assert nodes_of(stored) == graph.nodes


def test_all_mistakes_are_reported_together() -> None:
    text = FULL.replace("weight: 70", "weight: 71").replace("timeout: 30", "timeout: 0")
    with pytest.raises(InvalidModel) as caught:
        read_graphs([("graph.yaml", text)])
    assert len(caught.value.problems) == 2
    assert all("InferenceGraph zoo/animals" in each for each in caught.value.problems)


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ("{1: {}, two: {}}", "spec.nodes must have a node `root`"),
        ("{root: {routerType: Sequence, steps: [{nodeName: [a]}]}}", "nodeName must name one"),
        ("{root: {routerType: Sequence, steps: [{serviceUrl: {a: b}}]}}", "serviceUrl must be"),
        ("{root: {routerType: Sequence, steps: [{serviceName: [a]}]}}", "serviceName must name"),
        (
            "{root: {routerType: Switch, steps: [{serviceName: a, condition: [b]}]}}",
            "condition must have 1 to",
        ),
    ],
)
def test_values_of_other_types_are_mistakes(nodes: str, path: str) -> None:
    start = FULL.partition("  nodes:")[0]
    with pytest.raises(InvalidModel, match=path):
        read_graphs([("graph.yaml", f"{start}  nodes: {nodes}")])


def switch(condition: str, steps: int) -> str:
    listed = ", ".join([f"{{serviceName: a, condition: '{condition}'}}"] * steps)
    return f"{{root: {{routerType: Switch, steps: [{listed}]}}}}"


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        pytest.param(switch("{ bad", 257), "may have 256 steps together, was 257", id="steps"),
        pytest.param(
            f"{{root: 1, {', '.join(f'n{at}: {{routerType: Bad}}' for at in range(256))}}}",
            "may have 256 nodes, was 257",
            id="nodes",
        ),
        pytest.param(
            switch("{" + "x" * 999, 17),
            "may have conditions of 16384 characters together, was 17000",
            id="conditions",
        ),
    ],
)
def test_nodes_of_a_graph_that_is_too_large_are_not_read(nodes: str, message: str) -> None:
    start = FULL.partition("  nodes:")[0]
    with pytest.raises(InvalidModel) as caught:
        read_graphs([("graph.yaml", f"{start}  nodes: {nodes}")])
    [problem] = caught.value.problems
    assert message in problem


def test_a_mistake_shows_no_more_of_a_value_than_helps() -> None:
    bomb = "x0: &x0 [a, a]\n" + "".join(
        f"x{at}: &x{at} [{', '.join([f'*x{at - 1}'] * 9)}]\n" for at in range(1, 12)
    )
    with pytest.raises(InvalidModel) as error:
        read_graphs([("graph.yaml", f"kind: InferenceGraph\n{bomb}metadata: *x11\n")])
    assert len(str(error.value)) < 10_000
