"""A transformer and explainer on KServe's own server, in front of a pod, through a gateway."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from registry.domain.model import ModelName
from registry.inference_service.components import machine_needs
from tests import servers
from tests.runtime.conftest import Cluster
from tests.tabular_models import MAKERS

pytestmark = pytest.mark.slow

ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
PETALS = ModelName("default", "petals")
PROTOCOLS = {"flowers": "v1", "petals": "v2"}
"""What the transformer of each model speaks to it."""


@dataclass(frozen=True)
class Served:
    gateway: servers.Gateway
    component: subprocess.Popen[bytes]

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = self.gateway.url + path
        return httpx.post(url, json=body, headers=named, trust_env=False, timeout=60)

    def predict(self, model: str, rows: Any, **headers: str) -> httpx.Response:
        return self.post(f"/v1/models/{model}:predict", {"instances": rows}, **headers)


@pytest.fixture(scope="module")
def served(
    shared_cluster: Cluster, gateway: servers.Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    port = servers.free_port()
    specs = [
        replace(
            shared_cluster.declare(name, MAKERS["sklearn"](tmp_path_factory.mktemp(name))),
            transformer=f"127.0.0.1:{port}",
            explainer=f"127.0.0.1:{port}",
        )
        for name in PROTOCOLS
    ]
    shared_cluster.do(lambda registry: registry.put_models(specs))
    shared_cluster.pod(slots=2)
    serve = [
        f"--serve={name}={protocol}={name}-predictor.default.svc:{gateway.port}"
        for name, protocol in PROTOCOLS.items()
    ]
    with servers.running("tests.runtime.kserve_component", *serve, http_port_here=port) as process:
        found = Served(gateway, process)
        servers.wait_until(lambda: _is_up(port), timeout_s=120, what="KServe's server up")
        servers.wait_until(
            lambda: found.predict("flowers", ROWS).status_code == 200, what="model served"
        )
        yield found


def _is_up(port: int) -> bool:
    try:
        return (
            httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=60).status_code == 200
        )
    except httpx.TransportError:
        return False


def _halved(rows: list[list[float]]) -> list[list[float]]:
    return [[each / 2 for each in row] for row in rows]


def test_predictions_come_through_the_transformer(served: Served) -> None:
    doubled = [[each * 2 for each in row] for row in ROWS]
    through = served.predict("flowers", doubled, x_request_id="through-1").json()
    direct = served.predict("flowers", ROWS, host="flowers-predictor.default").json()
    assert through["predictions"] == direct["predictions"] == [1, 0]
    assert "seen" not in direct
    assert through["seen"]["x-request-id"] == "through-1"
    assert through["seen"]["kserve-isvc-name"] == "flowers"


def test_the_models_own_request_has_the_id_of_the_callers(served: Served) -> None:
    response = served.predict("flowers", ROWS, x_request_id="kept-1")
    assert response.headers["x-request-id"] == "kept-1"
    assert response.headers["x-pilotlight-reason"] == "transformer"
    explained = httpx.get(
        f"{served.gateway.url}/pilotlight/v1/explain/kept-1", trust_env=False, timeout=60
    ).json()
    assert explained["model"] == "default/flowers"


def test_v2_comes_through_the_transformer(served: Served) -> None:
    tensor = {"name": "x", "datatype": "FP64", "shape": [2, 4]}
    data = [each * 2 for row in ROWS for each in row]
    response = served.post("/v2/models/petals/infer", {"inputs": [{**tensor, "data": data}]})
    assert response.status_code == 200, response.text
    document = response.json()
    assert document["parameters"] == {"by": "transformer"}
    assert document["outputs"][0]["data"] == [1, 0]


def test_explanations_are_the_explainers(served: Served) -> None:
    body = {"instances": ROWS}
    explained = served.post("/v1/models/flowers:explain", body)
    assert explained.status_code == 200, explained.text
    without_last = [[*row[:-1], 0.0] for row in _halved(ROWS)]
    direct = served.predict("flowers", without_last, host="flowers-predictor.default").json()
    assert explained.json()["explanations"] == direct["predictions"]
    prefixed = served.post("/serving/default/flowers/v1/models/flowers:explain", body)
    assert prefixed.json()["explanations"] == explained.json()["explanations"]


def test_errors_are_those_of_the_transformer(served: Served) -> None:
    """KServe's server makes 500 of the model's 400, and keeps its message."""
    response = served.predict("flowers", [[1.0, 2.0]])
    assert response.status_code == 500
    assert "each row must have 4 features" in response.text


def test_on_one_machine_a_request_is_told_what_is_missing(
    served: Served, shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = shared_cluster.declare("alone", MAKERS["sklearn"](tmp_path_factory.mktemp("alone")))
    lacking = replace(spec, needs=machine_needs({"transformer": {"containers": [{}]}}))
    shared_cluster.do(lambda registry: registry.put_models([lacking]))
    servers.wait_until(
        lambda: "needs a cluster" in served.predict("alone", ROWS).text, what="declared"
    )
    response = served.predict("alone", ROWS)
    assert response.status_code == 501
    assert response.headers["x-pilotlight-reason"] == "no-supporting-runtime"
    assert "retry-after" not in response.headers


def test_a_model_without_components_is_asked_itself(
    served: Served, shared_cluster: Cluster
) -> None:
    record = shared_cluster.do(lambda registry: registry.get_model(PETALS))
    assert record is not None
    changed = replace(record.spec, transformer="")
    shared_cluster.do(lambda registry: registry.put_models([changed]))
    servers.wait_until(
        lambda: "seen" not in served.predict("petals", ROWS).json(), what="asked itself"
    )
