"""A graph's routing, against what KServe's router answers in its own tests and source.

The runner's side alone: each step's response is what the test gives for its model.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from registry.inference_service.graph_reader import read_graph
from tests.workflows.runner.executing import messages_of
from workflows.runner.execution import ExecutingRun
from workflows.runner.graph import graph_workflow

Response = tuple[int, Any]


def execute(
    nodes: Mapping[str, Any],
    body: Any,
    responses: Mapping[str, Response | None],
    *,
    identity: str = "run",
) -> tuple[int, Any, list[tuple[str, Any]]]:
    """Status, body, and the calls with their bodies. A response None is none at all."""
    document = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"nodes": nodes},
    }
    graph = read_graph(document, "test")
    calls: list[tuple[str, Any]] = []
    bodies: list[str] = []

    def on_message(run: ExecutingRun, message: dict[str, Any]) -> None:
        match message:
            case {"type": "step", "model": str(model), "inputs": {"body": argument}}:
                sent = argument.get("value")
                if sent is None:
                    sent = bodies[argument["step"]]
                calls.append((model, orjson.loads(sent)))
                response = responses[model]
                bodies.append("" if response is None else orjson.dumps(response[1]).decode())
            case {"type": "fetch", "step": int(step)}:
                asyncio.get_running_loop().call_soon(answer, run, step)

    def answer(run: ExecutingRun, step: int) -> None:
        response = responses[calls[step][0]]
        if response is None:
            error = {"message": "no pod", "reason": "step-lost", "status": 503}
            run.deliver_failure(step, error)
        else:
            run.deliver(step, {"status": response[0], "body": bodies[step]})

    workflow = graph_workflow(graph.nodes, None)
    body = orjson.dumps(body).decode()
    *_, done = messages_of(workflow, on_message, identity=identity, body=body)
    assert done["type"] == "done", done
    return done["result"]["status"], orjson.loads(done["result"]["body"]), calls


def sequence(*steps: Mapping[str, Any]) -> dict[str, Any]:
    return {"root": {"routerType": "Sequence", "steps": list(steps)}}


def test_a_sequence_passes_responses_or_the_request() -> None:
    nodes = sequence(
        {"serviceName": "a"},
        {"serviceName": "b", "data": "$response"},
        {"serviceName": "c", "data": "$request"},
    )
    found = execute(nodes, {"q": 1}, {"a": (200, {"a": 1}), "b": (200, {"b": 1}), "c": (201, 7)})
    assert found == (201, 7, [("a", {"q": 1}), ("b", {"a": 1}), ("c", {"q": 1})])


@pytest.mark.parametrize(
    ("response", "sent"),
    [
        pytest.param({"predictions": [1, [2]]}, {"instances": [1, [2]]}, id="a-list"),
        pytest.param({"predictions": [1], "x": 2}, {"instances": [1]}, id="other-fields-are-lost"),
        pytest.param(
            {"predictions": [1], "instances": [3]}, {"instances": [1]}, id="in-place-of-instances"
        ),
        pytest.param({"predictions": []}, {"predictions": []}, id="an-empty-list"),
        pytest.param({"predictions": {"a": 1}}, {"predictions": {"a": 1}}, id="no-list"),
        pytest.param({"outputs": []}, {"outputs": []}, id="v2"),
        pytest.param(
            {"predictions": [1], "instances": 3},
            {"predictions": [1], "instances": 3},
            id="instances-of-another-type",
        ),
        pytest.param([1, 2], [1, 2], id="no-object"),
        pytest.param(None, None, id="null"),
    ],
)
def test_predictions_become_the_next_steps_instances(response: Any, sent: Any) -> None:
    """As `routeStep` decodes them, into lists `predictions` and `instances`."""
    nodes = sequence(
        {"serviceName": "a"},
        {"serviceName": "b", "data": "$response", "mapPredictionsToInstances": True},
    )
    found = execute(nodes, {"q": 1}, {"a": (200, response), "b": (200, {"b": 1})})
    assert found == (200, {"b": 1}, [("a", {"q": 1}), ("b", sent)])


def test_predictions_of_the_request_are_mapped_as_well() -> None:
    nodes = {
        "root": {
            "routerType": "Sequence",
            "steps": [{"serviceName": "a"}, {"nodeName": "inner", "data": "$response"}],
        },
        "inner": {
            "routerType": "Sequence",
            "steps": [{"serviceName": "b", "mapPredictionsToInstances": True}],
        },
    }
    found = execute(nodes, {}, {"a": (200, {"predictions": [1]}), "b": (200, {})})
    assert found[2] == [("a", {}), ("b", {"instances": [1]})]


def test_a_soft_step_that_fails_does_not_end_a_sequence() -> None:
    nodes = sequence({"serviceName": "a"}, {"serviceName": "b", "data": "$response"})
    found = execute(nodes, {}, {"a": (400, {"error": "x"}), "b": (200, {"b": 1})})
    assert found == (200, {"b": 1}, [("a", {}), ("b", {"error": "x"})])


def test_a_hard_step_that_fails_ends_a_sequence_with_its_response() -> None:
    nodes = sequence({"serviceName": "a", "dependency": "Hard"}, {"serviceName": "b"})
    found = execute(nodes, {}, {"a": (503, {"error": "x"}), "b": (200, {})})
    assert found == (503, {"error": "x"}, [("a", {})])


def test_an_unmet_condition_ends_a_sequence_with_the_response_so_far() -> None:
    nodes = sequence(
        {"serviceName": "a"}, {"serviceName": "b", "condition": 'predictions.#(=="dog")'}
    )
    unmet = execute(nodes, {}, {"a": (200, {"predictions": ["cat"]}), "b": (200, {"b": 1})})
    assert unmet == (200, {"predictions": ["cat"]}, [("a", {})])
    met = execute(nodes, {"q": 1}, {"a": (200, {"predictions": ["dog"]}), "b": (200, {"b": 1})})
    assert met == (200, {"b": 1}, [("a", {"q": 1}), ("b", {"q": 1})])


def test_without_a_response_the_graph_answers_500() -> None:
    status, body, _ = execute(sequence({"serviceName": "a"}), {}, {"a": None})
    assert status == 500
    assert body == {"error": "Failed to process request", "cause": "no pod"}


SWITCH = {
    "root": {
        "routerType": "Switch",
        "steps": [
            {"serviceName": "dogs", "condition": '[@this].#(kind=="dog")'},
            {"serviceName": "cats", "condition": '[@this].#(kind=="cat")', "dependency": "Hard"},
        ],
    }
}


def test_a_switch_takes_the_first_condition_that_the_request_meets() -> None:
    responses = {"dogs": (200, "d"), "cats": (422, "c")}
    assert execute(SWITCH, {"kind": "dog"}, responses)[:2] == (200, "d")
    assert execute(SWITCH, {"kind": "cat"}, responses)[:2] == (422, "c")


def test_a_switch_without_a_match_is_404_and_500_inside_of_another_node() -> None:
    cause = "None of the routes matched with the switch condition"
    status, body, calls = execute(SWITCH, {"kind": "cow"}, {})
    assert (status, body["cause"], calls) == (404, cause, [])
    nested = {**sequence({"nodeName": "inner"}), "inner": SWITCH["root"]}
    status, body, _ = execute(nested, {"kind": "cow"}, {})
    assert (status, body["cause"]) == (500, cause)


def test_an_ensemble_merges_by_name_or_number() -> None:
    nodes = {
        "root": {
            "routerType": "Ensemble",
            "steps": [{"serviceName": "a", "name": "first"}, {"serviceName": "b"}],
        }
    }
    found = execute(nodes, {"q": 1}, {"a": (200, {"x": 1}), "b": (500, {"error": "soft"})})
    assert found == (
        200,
        {"first": {"x": 1}, "1": {"error": "soft"}},
        [("a", {"q": 1}), ("b", {"q": 1})],
    )


def test_a_hard_step_or_a_response_that_is_no_object_decides_an_ensemble() -> None:
    steps = [{"serviceName": "a"}, {"serviceName": "b", "dependency": "Hard"}]
    nodes = {"root": {"routerType": "Ensemble", "steps": steps}}
    found = execute(nodes, {}, {"a": (200, {}), "b": (429, {"error": "full"})})
    assert found[:2] == (429, {"error": "full"})
    assert execute(nodes, {}, {"a": (200, [1]), "b": (200, {})})[0] == 500


def test_a_splitter_follows_its_weights() -> None:
    steps = [{"serviceName": "a", "weight": 20}, {"serviceName": "b", "weight": 80}]
    nodes = {"root": {"routerType": "Splitter", "steps": steps}}
    responses = {"a": (200, "a"), "b": (200, "b")}
    seen = Counter(execute(nodes, {}, responses, identity=f"run-{n}")[1] for n in range(400))
    assert 40 <= seen["a"] <= 120  # 80 expected, standard deviation 8
    first = execute(nodes, {}, responses, identity="same")
    assert first == execute(nodes, {}, responses, identity="same")  # a resumed run
