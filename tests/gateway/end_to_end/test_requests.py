"""Requests through the real gateway process: names, headers, bodies, errors, explanations."""

from __future__ import annotations

import hashlib
import json
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from registry.domain.model import LoadFailure, ModelSpec, RoutingPolicy
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, metric, read_response
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


MIB = 1 << 20


@pytest.fixture(scope="module")
def standing(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHarness]:
    """A gateway and a pod that all tests share which change neither."""
    folder = tmp_path_factory.mktemp("standing")
    with ExitStack() as stack:
        gateway = stack.enter_context(servers.gateway(folder, redis_url=redis.url, pool="standing"))
        harness = GatewayHarness(redis.url, "standing", gateway, client, stack)
        yield harness
        harness.threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def spec(standing: GatewayHarness) -> ModelSpec:
    """A model that is warm at the standing pod."""
    declared = standing.declare()
    standing.start_pods("pod-a", slots=4, warm=declared)
    return declared


# Names


@pytest.mark.parametrize("form", ["v1", "v2", "serving-v1", "serving-v2", "host-v1", "host-v2"])
def test_a_request_names_its_model_by(harness: GatewayHarness, form: str) -> None:
    namespace = "default" if form in ("v1", "v2") else "team"
    spec = harness.declare(namespace=namespace)
    harness.start_pods("pod-a", warm=spec)
    name, url = spec.name.name, harness.gateway.url
    path = f"/v2/models/{name}/infer" if form.endswith("v2") else f"/v1/models/{name}:predict"
    if form.startswith("serving"):
        url += f"/serving/team/{name}"
    headers = {"x-test": "answer=headers"}
    if form.startswith("host"):
        headers["host"] = f"{name}.team.example.com"
    answer = harness.client.post(url + path, content=b"{}", headers=headers)
    assert answer.status_code == 200, answer.text
    seen = answer.json()
    protocol = "v2" if form.endswith("v2") else "v1"
    assert seen["path"].startswith(f"/{protocol}/models/{namespace}~{name}")
    assert seen["headers"]["x-pilotlight-model-name"] == name


# Headers


def test_a_response_has_the_documented_headers(standing: GatewayHarness, spec: ModelSpec) -> None:
    answer = standing.predict(spec, x_request_id="my-id", x_pilotlight_policy="colocation")
    headers = answer.headers
    assert headers["x-request-id"] == "my-id"
    assert headers["x-pilotlight-pod"] == "pod-a"
    assert headers["x-pilotlight-predict-pod"] == "pod-a"
    assert headers["x-pilotlight-policy"] == "colocation"
    assert headers["x-pilotlight-reason"] == "warm"
    assert headers["x-pilotlight-start"] == "warm"
    stages = dict(part.split(";dur=") for part in headers["server-timing"].split(", "))
    assert list(stages) == ["queue", "load", "preprocess", "infer", "postprocess", "network"]
    assert float(stages["infer"]) == 2.0
    assert headers["x-custom"] == "kept"


def test_a_request_without_id_gets_a_unique_one(standing: GatewayHarness, spec: ModelSpec) -> None:
    one, other = standing.predict(spec), standing.predict(spec)
    assert one.headers["x-request-id"] != other.headers["x-request-id"]


def test_the_pod_gets_the_documented_headers(standing: GatewayHarness, spec: ModelSpec) -> None:
    answer = standing.predict(
        spec,
        x_test="answer=headers",
        x_pilotlight_deadline_ms="5000",
        x_pilotlight_load_token="77",
        x_pilotlight_predict="127.0.0.1:1",
        x_pilotlight_simulate="preprocess=0",
        authorization="secret",
    )
    seen = answer.json()["headers"]
    assert seen["x-pilotlight-generation"] == spec.generation
    assert seen["x-pilotlight-reservation"]
    assert 0 < int(seen["x-pilotlight-deadline-ms"]) <= 5000
    assert seen["x-request-id"] == answer.headers["x-request-id"]
    assert seen["x-pilotlight-simulate"] == "preprocess=0"
    assert seen["authorization"] == "secret"
    assert "x-pilotlight-load-token" not in seen
    assert "x-pilotlight-predict" not in seen


@pytest.mark.parametrize("status", [200, 204, 304, 400, 422, 500, 503, 507])
def test_the_status_of_the_pod_is_forwarded(
    standing: GatewayHarness, spec: ModelSpec, status: int
) -> None:
    body = b"" if status in (204, 304) else b'{"x": 1}'
    answer = standing.predict(spec, body, x_test=f"status={status}")
    assert answer.status_code == status
    assert answer.content == body
    assert standing.predict(spec).status_code == 200


# Bodies


@pytest.mark.parametrize("size", [0, 1, 1000, MIB - 1, MIB + 1, 3 * MIB])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_is_forwarded_unchanged(
    standing: GatewayHarness, spec: ModelSpec, size: int, is_chunked: bool
) -> None:
    body = (hashlib.sha256(str(size).encode()).digest() * (size // 32 + 1))[:size]

    def pieces() -> Iterator[bytes]:
        for start in range(0, size, 50_000):
            yield body[start : start + 50_000]

    answer = standing.predict(spec, pieces() if is_chunked else body, content_type="application/x")
    assert answer.status_code == 200
    assert answer.content == body
    assert answer.headers["x-test-sha256"] == hashlib.sha256(body).hexdigest()
    assert answer.headers["content-type"] == "application/x"


def test_a_response_without_length_is_forwarded(standing: GatewayHarness, spec: ModelSpec) -> None:
    assert len(standing.predict(spec, x_test="pieces=3").content) == 3 * 65536
    assert standing.predict(spec, b"abc", x_test="answer=until-close").content == b"abc"


def test_20_mb_in_both_directions_need_constant_memory(
    standing: GatewayHarness, spec: ModelSpec
) -> None:
    standing.predict(spec)
    before = standing.gateway.resident_bytes()
    most = before

    def pieces() -> Iterator[bytes]:
        nonlocal most
        for _ in range(320):
            yield b"y" * 65536
            most = max(most, standing.gateway.resident_bytes())

    answer = standing.predict(spec, pieces(), x_test="answer=headers")
    assert answer.headers["x-test-sha256"] == hashlib.sha256(b"y" * 65536 * 320).hexdigest()
    received = 0
    request = standing.client.stream(
        "POST", standing.url_of(spec), content=b"", headers={"x-test": "pieces=320"}
    )
    with request as streamed:
        for chunk in streamed.iter_raw(65536):
            received += len(chunk)
            most = max(most, standing.gateway.resident_bytes())
    assert received == 320 * 65536
    assert most - before < 12 * MIB


def test_a_slow_reader_does_not_fill_the_gateway(standing: GatewayHarness, spec: ModelSpec) -> None:
    before = standing.gateway.resident_bytes()
    request = standing.client.stream(
        "POST", standing.url_of(spec), content=b"", headers={"x-test": "pieces=640"}
    )
    with request as streamed:
        chunks = streamed.iter_raw(65536)
        received = len(next(chunks))
        for _ in range(20):  # the pod could send all of it meanwhile
            standing.client.get(f"{standing.gateway.url}/healthz")
        assert standing.gateway.resident_bytes() - before < 12 * MIB
        received += sum(map(len, chunks))
    assert received == 640 * 65536


# Limits


def test_a_declared_length_of_100_mb_is_413_without_reading(
    standing: GatewayHarness, spec: ModelSpec
) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {100 * MIB}\r\n\r\n"
    answer = exchange_bytes(standing.gateway.port, head.encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert str(100 * MIB).encode() in answer.partition(b"\r\n\r\n")[2]


def test_a_client_that_sends_a_too_large_body_gets_413(
    standing: GatewayHarness, spec: ModelSpec
) -> None:
    answer = standing.predict(spec, b"z" * (70 * MIB))
    assert answer.status_code == 413
    assert "67108864" in answer.json()["error"]


def test_a_chunked_body_of_100_mb_is_413(standing: GatewayHarness, spec: ModelSpec) -> None:
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += MIB
            yield b"z" * MIB

    answer = standing.predict(spec, pieces())
    assert answer.status_code == 413
    assert standing.predict(spec).status_code == 200


# Bad requests


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"NONSENSE\r\n\r\n", 400, id="no-http"),
        pytest.param(b"POST /v1/models/m:predict\r\n\r\n", 404, id="http-0.9"),
        pytest.param(b"POST http://[/ HTTP/1.1\r\nhost: x\r\n\r\n", 400, id="bad-url"),
        pytest.param(
            b"POST /v1/models/\xff\xfe:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            400,
            id="path-bytes",
        ),
        pytest.param(
            b"POST /v1/models/%ff%fe:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            404,
            id="path-escaped-bytes",
        ),
        pytest.param(
            b"POST /v1/models/%zz:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            404,
            id="path-bad-escape",
        ),
        pytest.param(
            b"POST /v1/models/a%2Fb:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            400,
            id="escaped-slash",
        ),
        pytest.param(
            b"POST /v1/models/m:predict HTTP/1.1\r\nhost: \xff\xfe.a.b\r\n"
            b"content-length: 0\r\n\r\n",
            404,
            id="host-bytes",
        ),
        pytest.param(
            b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n"
            b"content-length: 2\r\n\r\nab",
            400,
            id="two-lengths",
        ),
        pytest.param(
            b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999"
            b"\r\n\r\n",
            400,
            id="length-too-long",
        ),
        pytest.param(b"GET /v1/models/m:predict HTTP/1.1\r\nhost: x\r\n\r\n", 404, id="get"),
        pytest.param(
            b"PUT /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            405,
            id="put",
        ),
        pytest.param(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n", 404, id="no-such-path"),
        pytest.param(b"GET /%00 HTTP/1.1\r\nhost: x\r\n\r\n", 404, id="nul"),
        pytest.param(
            b"GET /v2/models/m HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade"
            b"\r\n\r\n",
            404,
            id="upgrade",
        ),
        pytest.param(
            b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n"
            b"x-pilotlight-deadline-ms: soon\r\n\r\n",
            400,
            id="deadline",
        ),
    ],
)
def test_a_malformed_request_gets_an_error(
    harness: GatewayHarness, data: bytes, status: int
) -> None:
    answer = exchange_bytes(harness.gateway.port, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert harness.client.get(f"{harness.gateway.url}/healthz").status_code == 200


def test_a_malformed_chunk_is_400_and_frees_the_slot(
    standing: GatewayHarness, spec: ModelSpec
) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    answer = exchange_bytes(standing.gateway.port, head.encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert standing.predict(spec).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"x_pilotlight_deadline_ms": "-1"}, id="deadline"),
        pytest.param({"x_pilotlight_policy": "magic"}, id="policy"),
        pytest.param({"x_request_id": "a b"}, id="request-id"),
    ],
)
def test_an_invalid_header_is_named_in_the_error(
    standing: GatewayHarness, spec: ModelSpec, headers: dict[str, str]
) -> None:
    answer = standing.predict(spec, **headers)
    assert answer.status_code == 400
    assert next(iter(headers)).replace("_", "-") in answer.json()["error"]
    assert answer.headers["x-pilotlight-reason"] == "bad-request"


@pytest.mark.parametrize("path", ["/v1/models/nobody:predict", "/v2/models/nobody/infer"])
def test_an_unknown_model_is_404(harness: GatewayHarness, path: str) -> None:
    answer = harness.client.post(harness.gateway.url + path, content=b"{}")
    assert answer.status_code == 404
    assert answer.json() == {"error": "model default/nobody does not exist"}
    assert answer.headers["x-request-id"]


def test_a_failed_load_is_reported_with_its_status(harness: GatewayHarness) -> None:
    spec = harness.declare()
    harness.start_pods("pod-a")
    harness.fail_load(LoadFailure(spec.key, "ModelLoadFailed", "does not fit", 1, 9e12, 507))
    answer = harness.predict(spec)
    assert answer.status_code == 507
    assert "does not fit" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["x-pilotlight-reason"] == "load-failed"


# Body timing


def test_a_client_that_disconnects_inside_its_body_leaks_nothing(
    standing: GatewayHarness, spec: ModelSpec
) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {3 * MIB}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", standing.gateway.port)) as connection:
        connection.sendall(head.encode() + b"q" * 2 * MIB)
    assert standing.predict(spec).status_code == 200


def test_expect_continue_gets_100_continue(standing: GatewayHarness, spec: ModelSpec) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n"
        "connection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", standing.gateway.port), timeout=60) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(b"{}")
        assert read_response(connection).startswith(b"HTTP/1.1 200 ")


def test_an_error_before_100_continue_closes_the_connection(
    standing: GatewayHarness,
) -> None:
    head = (
        "POST /v1/models/nobody:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
        "expect: 100-continue\r\n\r\n"
    )
    received = exchange_bytes(standing.gateway.port, head.encode())
    assert received.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close\r\n" in received


def test_an_http_1_0_client_gets_no_chunked_encoding(
    standing: GatewayHarness, spec: ModelSpec
) -> None:
    head = (
        f"POST /v1/models/{spec.name.name}:predict HTTP/1.0\r\ncontent-length: 2\r\n"
        "x-test: pieces=3\r\n\r\n{}"
    )
    with socket.create_connection(("127.0.0.1", standing.gateway.port), timeout=60) as connection:
        connection.sendall(head.encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head_lines, _, body = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head_lines
    assert len(body) == 3 * 65536


def test_pipelined_requests_get_responses_in_order(
    standing: GatewayHarness, spec: ModelSpec
) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    one = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n"
    data = f"{one}\r\n1{one}connection: close\r\n\r\n2".encode()
    with socket.create_connection(("127.0.0.1", standing.gateway.port), timeout=60) as connection:
        connection.sendall(data)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.index(b"\r\n\r\n1") < received.index(b"\r\n\r\n2")


# Around


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
    answer = harness.client.get(f"{harness.gateway.url}/pilotlight/v1/explain/nobody")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]


def test_metrics_count_requests(standing: GatewayHarness, spec: ModelSpec) -> None:
    before = standing.metric("pilotlight_gateway_requests_total", code="200")
    standing.predict(spec)
    standing.client.post(standing.gateway.url + "/v1/models/nobody:predict", content=b"{}")
    text = standing.client.get(f"{standing.gateway.url}/metrics").text
    model = str(spec.name)
    assert metric(text, "pilotlight_gateway_requests_total", code="200") == before + 1
    assert metric(text, "pilotlight_gateway_requests_total", model=model, code="200") >= 1
    assert metric(text, "pilotlight_gateway_starts_total", model=model, tier="warm") >= 1
    assert metric(text, "pilotlight_gateway_stage_seconds_count", stage="infer") >= 1
    assert metric(text, "pilotlight_gateway_request_seconds_count") >= 1
    assert metric(text, "pilotlight_gateway_waiting_requests") == 0
    assert metric(text, "pilotlight_gateway_reservations") == 0
    assert 0 <= metric(text, "pilotlight_gateway_registry_age_seconds") < 60
    assert "nobody" not in text


def test_metrics_parse(standing: GatewayHarness, spec: ModelSpec) -> None:
    standing.predict(spec)
    text = standing.client.get(f"{standing.gateway.url}/metrics").text
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
    spec = harness.declare(routing=RoutingPolicy.AUTO)
    pods = harness.start_pods("pod-a", warm=spec)
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
    assert harness.client.get(f"{harness.gateway.url}/docs").status_code == 200


def test_model_lists_and_readiness(standing: GatewayHarness, spec: ModelSpec) -> None:
    url, name = standing.gateway.url, spec.name.name
    assert name in standing.client.get(f"{url}/v1/models").json()["models"]
    assert standing.client.get(f"{url}/v1/models/{name}").json() == {"name": name, "ready": True}
    metadata = standing.client.get(f"{url}/v2/models/{name}").json()
    assert metadata["versions"] == [spec.generation]
    assert standing.client.get(f"{url}/v2/models/nobody").status_code == 404
    assert standing.client.get(f"{url}/v2/health/ready").json() == {"ready": True}
    index = standing.client.post(f"{url}/v2/repository/index").json()
    assert {"name": name, "version": spec.generation, "state": "READY", "reason": ""} in index


def test_a_model_in_another_namespace_is_found_by_its_prefix(harness: GatewayHarness) -> None:
    spec = harness.declare(namespace="far")
    name = spec.name.name
    path = f"/serving/far/{name}/v2/models/{name}/ready"
    assert harness.client.get(harness.gateway.url + path).status_code == 200
    host = {"host": f"{name}.far.example.com"}
    answer = harness.client.get(f"{harness.gateway.url}/v1/models/{name}", headers=host)
    assert answer.status_code == 200


def test_a_deleted_model_is_404(harness: GatewayHarness) -> None:
    spec = harness.declare()
    harness.run(lambda registry: registry.delete_models([spec.name]))
    harness.wait_synced()
    assert harness.predict(spec).status_code == 404


def test_a_plain_http_client_suffices(standing: GatewayHarness, spec: ModelSpec) -> None:
    answer = httpx.post(standing.url_of(spec), json={"instances": [1]}, trust_env=False, timeout=60)
    assert answer.json() == {"instances": [1]}
