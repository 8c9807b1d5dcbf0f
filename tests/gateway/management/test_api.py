"""The management API of a real gateway process: explanations, metrics, OpenAPI, model lists."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from registry.domain.model import RoutingPolicy
from tests.gateway.gateway_harness import GatewayHarness, metric
from tests.servers import wait_until

if TYPE_CHECKING:
    from registry.domain.model import ModelSpec


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
    assert shared.client.get(f"{url}/v1/models/{name}").json() == {
        "name": name,
        "ready": True,
    }
    metadata = shared.client.get(f"{url}/v2/models/{name}").json()
    assert metadata == {
        "name": name, "versions": [spec.generation], "platform": "fake",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}], "outputs": [],
    }  # fmt: skip
    assert shared.client.get(f"{url}/v2/models/nobody").status_code == 404
    assert shared.client.get(f"{url}/v2/health/ready").json() == {"ready": True}
    index = shared.client.post(f"{url}/v2/repository/index").json()
    assert {"name": name, "version": spec.generation, "state": "READY", "reason": ""} in index


def test_metadata_needs_a_pod(harness: GatewayHarness) -> None:
    spec = harness.declare()
    response = harness.client.get(f"{harness.gateway.url}/v2/models/{spec.name.name}")
    assert response.status_code == 503
    assert response.json() == {"error": "no pod accepts requests"}


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
