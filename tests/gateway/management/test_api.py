"""The management API of a real gateway process: explanations, metrics, model lists, methods."""

import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from registry.domain.model import ModelSpec, RoutingPolicy
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, metric
from tests.servers import wait_until


def test_explains_a_decision(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.COLOCATION)
    harness.start_pods("pod-a", "pod-b", warm=())
    harness.predict(spec, x_request_id="why/this?")
    found = harness.explain("why%2Fthis%3F")
    assert found["request_id"] == "why/this?"
    assert found["policy"] == "colocation"
    assert found["decision"]["action"] == "send"
    assert found["decision"]["reason"] == "cold"
    assert {pod["pod"] for pod in found["candidates"]} == {"pod-a", "pod-b"}


def test_an_unknown_request_cannot_be_explained(harness: GatewayHarness) -> None:
    response = harness.client.get(f"{harness.gateway.url}/pilotlight/v1/explain/nobody")
    assert response.status_code == 404
    assert "nobody" in response.json()["error"]


def test_metrics_count_requests(shared: GatewayHarness, spec: ModelSpec) -> None:
    before = shared.metric("pilotlight_gateway_requests_total", code="200")
    shared.predict(spec)
    shared.client.post(shared.gateway.url + "/v1/models/nobody:predict", content=b"{}")
    text = shared.client.get(f"{shared.gateway.url}/metrics").text
    model = str(spec.name)
    assert metric(text, "pilotlight_gateway_requests_total", code="200") == before + 1
    assert metric(text, "pilotlight_gateway_requests_total", model=model, code="200") >= 1
    assert metric(text, "pilotlight_gateway_starts_total", model=model, tier="warm") >= 1
    assert metric(text, "pilotlight_gateway_stage_seconds_count", stage="infer") >= 1
    assert metric(text, "pilotlight_gateway_request_seconds_count") >= 1
    assert metric(text, "pilotlight_gateway_waiting_requests") == 0
    assert metric(text, "pilotlight_gateway_reservations") == 0
    assert 0 <= metric(text, "pilotlight_gateway_registry_age_seconds") < 60
    assert metric(text, "pilotlight_gateway_model_request_seconds_count", model=model) >= 1
    infer = {"model": model, "stage": "infer"}
    assert metric(text, "pilotlight_gateway_model_stage_seconds_count", **infer) >= 1
    assert metric(text, "pilotlight_gateway_decisions_total", model=model, reason="warm") >= 1
    assert metric(text, "pilotlight_gateway_requests_total", model="unknown", code="404") >= 1
    assert "nobody" not in text


def test_prometheus_finds_the_pods(shared: GatewayHarness, spec: ModelSpec) -> None:
    found = shared.client.get(f"{shared.gateway.url}/pilotlight/v1/targets").json()
    (target,) = (each for each in found if each["labels"]["pod"] == "pod-a")
    assert set(target["labels"]) == {"pool", "pod", "node"}
    response = shared.client.get(f"http://{target['targets'][0]}/metrics")
    assert response.status_code == 200


def test_metrics_parse(shared: GatewayHarness, spec: ModelSpec) -> None:
    shared.predict(spec)
    text = shared.client.get(f"{shared.gateway.url}/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(name.startswith("pilotlight_gateway_") for name in families)
    buckets = [
        sample
        for sample in families["pilotlight_gateway_stage_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["stage"] == "queue"
    ]
    counts = [sample.value for sample in buckets]
    assert counts == sorted(counts)
    assert buckets[-1].labels["le"] == "+Inf"


def test_auto_records_the_error_of_its_forecasts(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.AUTO)
    samples = [[spec.key, m, [0.001]] for m in ("infer", "preprocess", "postprocess", "network")]
    before = harness.metric("pilotlight_gateway_prediction_error_seconds_count", policy="auto")
    pods.control("pod-a", "samples", json.dumps(samples))

    def is_recorded() -> bool:
        harness.predict(spec)
        after = harness.metric("pilotlight_gateway_prediction_error_seconds_count", policy="auto")
        return after > before

    wait_until(is_recorded, what="recorded")


def test_the_openapi_document_has_the_inference_paths(harness: GatewayHarness) -> None:
    document = harness.client.get(f"{harness.gateway.url}/openapi.json").json()
    assert "post" in document["paths"]["/v1/models/{name}:predict"]
    assert "post" in document["paths"]["/serving/{namespace}/{name}/v2/models/{name}/infer"]


def test_model_lists_and_readiness(shared: GatewayHarness, spec: ModelSpec) -> None:
    url, name = shared.gateway.url, spec.name.name
    assert name in shared.client.get(f"{url}/v1/models").json()["models"]
    assert shared.client.get(f"{url}/v1/models/{name}").json() == {"name": name, "ready": True}
    metadata = shared.client.get(f"{url}/v2/models/{name}").json()
    assert metadata == {
        "name": name,
        "versions": [spec.generation],
        "platform": "fake",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [],
    }
    assert shared.client.get(f"{url}/v2/models/nobody").status_code == 404
    assert shared.client.get(f"{url}/v2/health/ready").json() == {"ready": True}
    index = shared.client.post(f"{url}/v2/repository/index").json()
    assert {"name": name, "version": spec.generation, "state": "READY", "reason": ""} in index


@pytest.mark.parametrize("version", ["1", "v2.0", "latest"])
def test_every_version_is_the_declared_one(
    shared: GatewayHarness, spec: ModelSpec, version: str
) -> None:
    """As in inference paths and gRPC: a model is declared once, whatever its version is called."""
    path = f"{shared.gateway.url}/v2/models/{spec.name.name}"
    for rest in ("", "/ready"):
        plain = shared.client.get(path + rest)
        versioned = shared.client.get(f"{path}/versions/{version}{rest}")
        assert (plain.status_code, plain.json()) == (versioned.status_code, versioned.json())
        assert plain.status_code == 200
    nobody = f"{shared.gateway.url}/v2/models/nobody/versions/{version}"
    assert shared.client.get(nobody).status_code == 404
    assert shared.client.get(f"{nobody}/ready").status_code == 404


def test_the_server_is_described_with_and_without_a_slash(shared: GatewayHarness) -> None:
    paths = ("/v2", "/v2/", "/serving/default/m/v2/")
    found = [shared.client.get(shared.gateway.url + path) for path in paths]
    assert [each.status_code for each in found] == [200] * 3
    assert len({each.text for each in found}) == 1


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/v2", "/v2/health/ready", "/v2/models", "/v2/models/nobody/ready"]
)
def test_head_is_answered_as_get_without_a_body(shared: GatewayHarness, path: str) -> None:
    url = shared.gateway.url + path
    asked, found = shared.client.head(url), shared.client.get(url)
    assert asked.status_code == found.status_code
    assert asked.headers["content-length"] == str(len(found.content))
    assert asked.content == b""


def test_head_of_an_inference_path_is_405(shared: GatewayHarness, spec: ModelSpec) -> None:
    response = shared.client.head(shared.url_of(spec))
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_host_of_a_deleted_model_is_not_answered_by_its_namesake(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod()
    name = spec.name.name
    twin = harness.declare(name, namespace="far")
    headers = {"host": f"{name}.far.example.com"}
    harness.run(lambda registry: registry.delete_models([twin.name]))
    harness.wait_synced()
    url = harness.gateway.url
    found = harness.client.post(f"{url}/v1/models/{name}:predict", json={}, headers=headers)
    assert (found.status_code, found.json()) == (404, {"error": f"model far/{name} does not exist"})
    for path in (f"/v1/models/{name}", f"/v2/models/{name}/ready", f"/v2/models/{name}"):
        assert harness.client.get(url + path, headers=headers).status_code == 404
    other = harness.declare(namespace="far")
    ghost = {"host": "ghost.far.example.com"}
    listed = harness.client.get(f"{url}/v2/models", headers=ghost)
    assert listed.json() == {"models": [other.name.name]}
    infer = harness.client.post(f"{url}/v2/models/{name}/infer", json={}, headers=ghost)
    assert infer.status_code == 404
    assert harness.predict(spec).status_code == 200


def test_metadata_needs_a_pod(harness: GatewayHarness) -> None:
    spec = harness.declare()
    response = harness.client.get(f"{harness.gateway.url}/v2/models/{spec.name.name}")
    assert response.status_code == 503
    assert response.json() == {"error": "no pod accepts requests"}


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [("pickle", 501, "pickled models are not served"), ("too-large", 507, "needs 8 GB on disk")],
)
def test_metadata_of_files_that_are_not_served_keep_the_pods_status(
    harness: GatewayHarness, kind: str, status: int, error: str
) -> None:
    spec = harness.declare(kind)
    harness.start_pods("pod-a")
    response = harness.client.get(f"{harness.gateway.url}/v2/models/{spec.name.name}")
    assert response.status_code == status
    assert response.json() == {"error": error}
    assert "retry-after" not in response.headers


def test_a_model_in_another_namespace_is_found_by_its_prefix(harness: GatewayHarness) -> None:
    spec = harness.declare(namespace="far")
    name = spec.name.name
    path = f"/serving/far/{name}/v2/models/{name}/ready"
    assert harness.client.get(harness.gateway.url + path).status_code == 200
    host = {"host": f"{name}.far.example.com"}
    response = harness.client.get(f"{harness.gateway.url}/v1/models/{name}", headers=host)
    assert response.status_code == 200


def test_a_deleted_model_is_404(harness: GatewayHarness) -> None:
    spec = harness.declare()
    harness.run(lambda registry: registry.delete_models([spec.name]))
    harness.wait_synced()
    assert harness.predict(spec).status_code == 404


def test_a_plain_http_client_suffices(shared: GatewayHarness, spec: ModelSpec) -> None:
    response = httpx.post(shared.url_of(spec), json={"instances": [1]}, trust_env=False, timeout=60)
    assert response.json() == {"instances": [1]}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/models/m:predict", "POST"),
        ("PUT", "/v1/models/m:predict", "POST"),
        ("HEAD", "/v1/models/m%3Apredict", "POST"),
        ("GET", "/v1/models/m:explain", "POST"),
        ("GET", "/v2/models/m/infer", "POST"),
        ("OPTIONS", "/v2/models/m/versions/1/infer", "POST"),
        ("GET", "/serving/a/m/v2/models/m/infer", "POST"),
        ("GET", "/openai/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models/m", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/v2/models/m/ready", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("DELETE", "/openai/v1/models/m", "GET, HEAD"),
        ("PUT", "/serving/a/graph/", "GET, HEAD, POST"),
        ("POST", "/v1/workflows", "GET, HEAD"),
        ("POST", "/v1/workflows/w", "PUT, DELETE"),
        ("GET", "/v1/workflows/w:run", "POST"),
        ("PUT", "/v1/workflows/w%3arun", "POST"),
        ("PUT", "/v1/workflows/w/runs/1", "GET, HEAD, DELETE"),
        ("POST", "/console/requests", "GET, HEAD"),
    ],
)
def test_another_method_is_405_and_names_the_methods(
    shared: GatewayHarness, method: str, path: str, allowed: str
) -> None:
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    response = exchange_bytes(shared.gateway.port, head.encode()).decode()
    assert response.startswith("HTTP/1.1 405 "), response
    assert f"\r\nallow: {allowed}\r\n" in response
    assert "\r\nx-pilotlight-reason: method-not-allowed\r\n" in response
    assert method == "HEAD" or f"takes the methods {allowed}, was {method}" in response


def test_a_slash_too_many_is_no_way_into_another_namespace(shared: GatewayHarness) -> None:
    response = shared.client.get(f"{shared.gateway.url}/serving/a/m/v1/models/")
    assert response.status_code == 404
