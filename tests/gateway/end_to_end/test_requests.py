"""Requests through a real gateway process: model names, headers, bodies, connections."""

import hashlib
import socket
from collections.abc import Iterator

import pytest

from registry.domain.model import ModelSpec
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, read_response

MIB = 1 << 20


@pytest.mark.parametrize("form", ["v1", "v2", "serving-v1", "serving-v2", "host-v1", "host-v2"])
def test_a_request_names_its_model_by(harness: GatewayHarness, form: str) -> None:
    namespace = "default" if form in ("v1", "v2") else "team"
    spec, _ = harness.start_warm_pod(namespace=namespace)
    name, url = spec.name.name, harness.gateway.url
    path = f"/v2/models/{name}/infer" if form.endswith("v2") else f"/v1/models/{name}:predict"
    if form.startswith("serving"):
        url += f"/serving/team/{name}"
    headers = {"x-test": "response=headers"}
    if form.startswith("host"):
        headers["host"] = f"{name}.team.example.com"
    response = harness.client.post(url + path, content=b"{}", headers=headers)
    assert response.status_code == 200, response.text
    seen = response.json()
    protocol = "v2" if form.endswith("v2") else "v1"
    assert seen["path"].startswith(f"/{protocol}/models/{namespace}~{name}")
    assert seen["headers"]["x-pilotlight-model-name"] == name


def test_a_response_has_the_documented_headers(shared: GatewayHarness, spec: ModelSpec) -> None:
    response = shared.predict(spec, x_request_id="my-id", x_pilotlight_policy="colocation")
    headers = response.headers
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


def test_a_request_without_id_gets_a_unique_one(shared: GatewayHarness, spec: ModelSpec) -> None:
    one, other = shared.predict(spec), shared.predict(spec)
    assert one.headers["x-request-id"] != other.headers["x-request-id"]


def test_the_pod_gets_the_documented_headers(shared: GatewayHarness, spec: ModelSpec) -> None:
    response = shared.predict(
        spec,
        x_test="response=headers",
        x_pilotlight_deadline_ms="5000",
        x_pilotlight_load_token="77",
        x_pilotlight_predict="127.0.0.1:1",
        x_pilotlight_simulate="preprocess=0",
        authorization="secret",
    )
    seen = response.json()["headers"]
    assert seen["x-pilotlight-generation"] == spec.generation
    assert seen["x-pilotlight-reservation"]
    assert 0 < int(seen["x-pilotlight-deadline-ms"]) <= 5000
    assert seen["x-request-id"] == response.headers["x-request-id"]
    assert seen["x-pilotlight-simulate"] == "preprocess=0"
    assert seen["authorization"] == "secret"
    assert "x-pilotlight-load-token" not in seen
    assert "x-pilotlight-predict" not in seen


@pytest.mark.parametrize("status", [200, 204, 304, 400, 422, 500, 503, 507])
def test_the_status_of_the_pod_is_forwarded(
    shared: GatewayHarness, spec: ModelSpec, status: int
) -> None:
    body = b"" if status in (204, 304) else b'{"x": 1}'
    response = shared.predict(spec, body, x_test=f"status={status}")
    assert response.status_code == status
    assert response.content == body
    assert shared.predict(spec).status_code == 200


@pytest.mark.parametrize("size", [0, 1, 1000, MIB - 1, MIB + 1, 3 * MIB])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_is_forwarded_unchanged(
    shared: GatewayHarness, spec: ModelSpec, size: int, is_chunked: bool
) -> None:
    body = (hashlib.sha256(str(size).encode()).digest() * (size // 32 + 1))[:size]

    def chunks() -> Iterator[bytes]:
        for start in range(0, size, 50_000):
            yield body[start : start + 50_000]

    response = shared.predict(spec, chunks() if is_chunked else body, content_type="application/x")
    assert response.status_code == 200
    assert response.content == body
    assert response.headers["x-test-sha256"] == hashlib.sha256(body).hexdigest()
    assert response.headers["x-test-length"] == str(size)  # by which the pod classes its time
    assert response.headers["content-type"] == "application/x"


def test_a_response_without_length_is_forwarded(shared: GatewayHarness, spec: ModelSpec) -> None:
    assert len(shared.predict(spec, x_test="pieces=3").content) == 3 * 65536
    assert shared.predict(spec, b"abc", x_test="response=until-close").content == b"abc"


def test_a_body_of_20_mb_is_held_once_and_a_response_in_constant_memory(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    shared.predict(spec)
    before = shared.gateway.resident_bytes()
    max_bytes = before

    def chunks() -> Iterator[bytes]:
        nonlocal max_bytes
        for _ in range(320):
            yield b"y" * 65536
            max_bytes = max(max_bytes, shared.gateway.resident_bytes())

    response = shared.predict(spec, chunks(), x_test="response=headers")
    assert response.headers["x-test-sha256"] == hashlib.sha256(b"y" * 65536 * 320).hexdigest()
    assert max_bytes - before < (20 + 12) * MIB
    max_bytes = before = shared.gateway.resident_bytes()
    received = 0
    request = shared.client.stream(
        "POST", shared.url_of(spec), content=b"", headers={"x-test": "pieces=320"}
    )
    with request as streamed:
        for chunk in streamed.iter_raw(65536):
            received += len(chunk)
            max_bytes = max(max_bytes, shared.gateway.resident_bytes())
    assert received == 320 * 65536
    assert max_bytes - before < 12 * MIB


def test_a_slow_reader_does_not_fill_the_gateway(shared: GatewayHarness, spec: ModelSpec) -> None:
    before = shared.gateway.resident_bytes()
    request = shared.client.stream(
        "POST", shared.url_of(spec), content=b"", headers={"x-test": "pieces=640"}
    )
    with request as streamed:
        chunks = streamed.iter_raw(65536)
        received = len(next(chunks))
        for _ in range(20):  # time enough for the pod to send everything
            shared.client.get(f"{shared.gateway.url}/healthz")
        assert shared.gateway.resident_bytes() - before < 12 * MIB
        received += sum(map(len, chunks))
    assert received == 640 * 65536


def test_a_client_that_disconnects_inside_its_body_leaks_nothing(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {3 * MIB}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", shared.gateway.port)) as connection:
        connection.sendall(head.encode() + b"q" * 2 * MIB)
    assert shared.predict(spec).status_code == 200


def test_expect_continue_gets_100_continue(shared: GatewayHarness, spec: ModelSpec) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n"
        "connection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(b"{}")
        assert read_response(connection).startswith(b"HTTP/1.1 200 ")


def test_an_error_before_100_continue_closes_the_connection(shared: GatewayHarness) -> None:
    head = (
        "POST /v1/models/nobody:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
        "expect: 100-continue\r\n\r\n"
    )
    received = exchange_bytes(shared.gateway.port, head.encode())
    assert received.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close\r\n" in received


def test_an_http_1_0_client_gets_no_chunked_encoding(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    head = (
        f"POST /v1/models/{spec.name.name}:predict HTTP/1.0\r\ncontent-length: 2\r\n"
        "x-test: pieces=3\r\n\r\n{}"
    )
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        connection.sendall(head.encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head_lines, _, body = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head_lines
    assert len(body) == 3 * 65536


def test_pipelined_requests_get_responses_in_order(shared: GatewayHarness, spec: ModelSpec) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    one = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n"
    data = f"{one}\r\n1{one}connection: close\r\n\r\n2".encode()
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        connection.sendall(data)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.index(b"\r\n\r\n1") < received.index(b"\r\n\r\n2")
