"""InferenceGraphs of a pool: checked at admission, run by the component `workflows`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.schedulers import deployed_schedulers
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes


def _graph(tenant: Tenant, model: str, **step: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {
            "name": "twice",
            "namespace": tenant.namespace,
            "annotations": {
                "pilotlight.io/pool": "default",
                "serving.kserve.io/stop": "true",  # no router of KServe's
            },
        },
        "spec": {
            "nodes": {
                "root": {
                    "routerType": "Ensemble",
                    "steps": [
                        {"serviceName": model, "name": "first", **step},
                        {"serviceName": model},
                    ],
                }
            }
        },
    }


@pytest.fixture
def schedulers(installed: Kubectl, gateway: Gateway, tmp_path: Path) -> Iterator[None]:
    """The component, until the end of the test."""
    with deployed_schedulers(installed, tmp_path):
        yield


@pytest.mark.usefixtures("schedulers")
def test_a_graph_answers_as_kserves_router(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    tenant.declare("of-graph")
    tenant.wait_ready("of-graph")
    installed.apply([_graph(tenant, "of-graph")])
    url = f"{gateway.url}/serving/{tenant.namespace}/twice"
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]}

    def call() -> httpx.Response:
        return httpx.post(
            url, json=body, headers=tenant.credentials(), timeout=120, trust_env=False
        )

    wait_until(lambda: call().status_code == 200, what="the graph answers", timeout_s=120)
    answer = call().json()
    assert sorted(answer) == ["1", "first"]
    assert answer["first"]["model_name"] == "of-graph"
    installed("delete", "-n", tenant.namespace, "inferencegraphs", "twice")
    wait_until(lambda: call().status_code == 404, what="the graph is gone", timeout_s=60)


def test_a_wrong_graph_is_rejected(installed: Kubectl, gateway: Gateway, tenant: Tenant) -> None:
    answer = installed.try_apply([_graph(tenant, "of-graph", weight="much")])
    assert not answer.is_ok
    wrong = _graph(tenant, "of-graph", serviceName="Of_Graph")
    answer = installed.try_apply([wrong])
    assert not answer.is_ok
    assert "must name a model of namespace" in answer.errors
