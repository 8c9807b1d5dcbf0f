"""InferenceGraphs: applied as YAML, run by their URL through gateway, scheduler and pods.

The pods of these tests answer each body with itself.
"""

import pytest

from registry.errors import InvalidModel
from registry.inference_service.graph_reader import read_graphs
from registry.redis.client import Registry
from registry.redis.workflow_log import WorkflowLog
from tests.workflows.service.harness import WorkflowHarness

pytestmark = pytest.mark.slow

GRAPH = """
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: NAME}
spec:
  nodes:
    root:
      routerType: Sequence
      steps:
        - {serviceName: embed, dependency: Hard}
        - {nodeName: which, data: $response}
    which:
      routerType: Switch
      steps:
        - {serviceName: judge, condition: '[@this].#(kind=="one")'}
        - {nodeName: both, condition: '[@this].#(kind=="both")'}
        - {serviceName: nobody, condition: '[@this].#(kind=="none")'}
    both:
      routerType: Ensemble
      steps:
        - {serviceName: judge, name: first}
        - {serviceName: writer}
"""


def apply(harness: WorkflowHarness, name: str) -> str:
    """Its URL at the gateway."""
    [graph] = read_graphs([("test", GRAPH.replace("NAME", name))])

    async def put(registry: Registry) -> None:
        await WorkflowLog(registry).put_workflow(graph.name, graph.definition())

    harness.pool.run(put)
    return f"{harness.pool.gateway.url}/serving/default/{name}"


def test_a_graph_runs_by_its_url(harness: WorkflowHarness) -> None:
    url = apply(harness, "animals")
    one = harness.pool.client.post(url, json={"kind": "one", "instances": [1]})
    assert (one.status_code, one.json()) == (200, {"kind": "one", "instances": [1]})
    assert one.headers["content-type"] == "application/json"
    body = {"kind": "both"}
    both = harness.pool.client.post(f"{url}/", json=body)
    assert both.json() == {"first": body, "1": body}
    run = harness.status(f"{harness.url}/animals/runs/{both.headers['x-pilotlight-run']}")
    assert [step["model"] for step in run["steps"]] == ["embed", "judge", "writer"]
    assert [step["inputs"] for step in run["steps"]] == [[], [], []]


def test_a_graph_runs_by_its_host(harness: WorkflowHarness) -> None:
    apply(harness, "by-host")
    response = harness.pool.client.post(
        harness.pool.gateway.url,
        json={"kind": "one"},
        headers={"host": "by-host.default.example.com"},
    )
    assert (response.status_code, response.json()) == (200, {"kind": "one"})


def test_what_no_step_answers_is_an_error_of_the_router(harness: WorkflowHarness) -> None:
    url = apply(harness, "errors")
    for kind, cause in (("cow", "None of the routes"), ("none", "nobody is not declared")):
        response = harness.pool.client.post(url, json={"kind": kind})
        assert response.status_code == 500
        assert response.json()["error"] == "Failed to process request"
        assert cause in response.json()["cause"]


def test_unknown_graphs_and_other_workflows_are_named(harness: WorkflowHarness) -> None:
    gateway, client = harness.pool.gateway.url, harness.pool.client
    missing = client.post(f"{gateway}/serving/default/missing", json={})
    assert missing.status_code == 404
    assert "missing is not deployed" in missing.json()["error"]
    name = harness.deploy("@workflow\nasync def f(): return 1\n")
    other = client.post(f"{gateway}/serving/default/{name}", json={})
    assert other.status_code == 404
    assert "is no InferenceGraph" in other.json()["error"]
    assert client.post(gateway, json={}).status_code == 400
    url = apply(harness, "texts")
    assert client.post(url, content=b"\xff").status_code == 400


def test_a_graph_and_a_workflow_do_not_share_a_name(harness: WorkflowHarness) -> None:
    file = "@workflow\nasync def f(): return 1\n"
    name = harness.deploy(file)
    with pytest.raises(InvalidModel, match=f"InferenceGraph .*{name}: the name is that of a .* wo"):
        apply(harness, name)
    url = apply(harness, "first")
    taken = harness.put(file, "first")
    assert taken.status_code == 409
    assert taken.json()["reason"] == "name-taken"
    assert "is that of a deployed InferenceGraph" in taken.json()["error"]
    assert harness.pool.client.post(url, json={"kind": "one"}).status_code == 200


def test_a_seen_graph_is_predicted(harness: WorkflowHarness) -> None:
    url = apply(harness, "seen")
    for _ in range(3):
        harness.pool.client.post(url, json={"kind": "one"})
    response = harness.pool.client.post(url, json={"kind": "one"})
    run = harness.status(f"{harness.url}/seen/runs/{response.headers['x-pilotlight-run']}")
    assert [step["predicted"] for step in run["steps"]] == [True, True]
