"""Error responses of a real gateway process: limits, malformed requests, unknown models."""

from collections.abc import Iterator

import pytest

from registry.domain.model import LoadFailure, ModelSpec
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes

MIB = 1 << 20


def test_a_declared_length_of_100_mb_is_413_without_reading(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {100 * MIB}\r\n\r\n"
    response = exchange_bytes(shared.gateway.port, head.encode())
    assert response.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in response
    assert str(100 * MIB).encode() in response.partition(b"\r\n\r\n")[2]


def test_a_client_that_sends_a_too_large_body_gets_413(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    response = shared.predict(spec, b"z" * (70 * MIB))
    assert response.status_code == 413
    assert "67108864" in response.json()["error"]


def test_a_chunked_body_of_100_mb_is_413(shared: GatewayHarness, spec: ModelSpec) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += MIB
            yield b"z" * MIB

    response = shared.predict(spec, chunks())
    assert response.status_code == 413
    assert shared.predict(spec).status_code == 200


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
    response = exchange_bytes(harness.gateway.port, data)
    assert response.startswith(b"HTTP/1.1 %d " % status), response
    assert harness.client.get(f"{harness.gateway.url}/healthz").status_code == 200


def test_a_malformed_chunk_is_400_and_frees_the_slot(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    response = exchange_bytes(shared.gateway.port, head.encode())
    assert response.startswith(b"HTTP/1.1 400 ")
    assert shared.predict(spec).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"x_pilotlight_deadline_ms": "-1"}, id="deadline"),
        pytest.param({"x_pilotlight_policy": "magic"}, id="policy"),
        pytest.param({"x_request_id": "a b"}, id="request-id"),
    ],
)
def test_an_invalid_header_is_named_in_the_error(
    shared: GatewayHarness, spec: ModelSpec, headers: dict[str, str]
) -> None:
    response = shared.predict(spec, **headers)
    assert response.status_code == 400
    assert next(iter(headers)).replace("_", "-") in response.json()["error"]
    assert response.headers["x-pilotlight-reason"] == "bad-request"


@pytest.mark.parametrize("path", ["/v1/models/nobody:predict", "/v2/models/nobody/infer"])
def test_an_unknown_model_is_404(harness: GatewayHarness, path: str) -> None:
    response = harness.client.post(harness.gateway.url + path, content=b"{}")
    assert response.status_code == 404
    assert response.json() == {"error": "model default/nobody does not exist"}
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("exceeds_budget", [False, True])
def test_a_failed_load_is_reported_with_its_status(
    harness: GatewayHarness, exceeds_budget: bool
) -> None:
    """Room that others have may be freed; a model larger than the whole gets no other answer."""
    spec = harness.declare()
    harness.start_pods("pod-a")
    failure = LoadFailure(spec.key, "ModelLoadFailed", "no room", 1, 9e12, 507, exceeds_budget)
    harness.fail_load(failure)
    response = harness.predict(spec)
    assert response.status_code == 507
    assert "no room" in response.json()["error"]
    assert ("retry-after" in response.headers) is not exceeds_budget
    assert response.headers["x-pilotlight-reason"] == "load-failed"


@pytest.mark.parametrize(
    ("sent", "body", "reason", "message"),
    [
        pytest.param(
            "status=501,error=model-invalid",
            b'{"error": "no tokenizer"}',
            "model-invalid",
            "no tokenizer",
            id="kserve",
        ),
        pytest.param(
            "status=400,error=prompt-too-long",
            b'{"error": {"message": "66 tokens"}}',
            "prompt-too-long",
            "66 tokens",
            id="openai",
        ),
        pytest.param("status=500", b"<h1>sorry</h1>", "error", "<h1>sorry</h1>", id="no-json"),
    ],
)
def test_a_pods_error_is_explained_with_its_name_status_and_message(
    shared: GatewayHarness, spec: ModelSpec, sent: str, body: bytes, reason: str, message: str
) -> None:
    response = shared.predict(spec, body, x_test=sent)
    assert response.content == body
    assert response.headers["x-pilotlight-reason"] == reason
    assert "x-pilotlight-start" not in response.headers
    assert "x-pilotlight-error" not in response.headers
    found = shared.explain(response.headers["x-request-id"])
    status = response.status_code
    assert found["outcome"]["status"] == status
    assert found["outcome"]["error"] == message
    assert found["outcome"]["took_s"] > 0
    assert found["summary"].startswith("failed after ")
    assert f": {status} {reason}: {message}; decided: " in found["summary"]


def test_a_request_for_an_undeclared_model_is_explained_without_a_decision(
    shared: GatewayHarness,
) -> None:
    response = shared.client.post(f"{shared.gateway.url}/v1/models/ghost:predict", json={})
    found = shared.explain(response.headers["x-request-id"])
    assert found["outcome"]["status"] == 404
    assert "404 model-not-found: " in found["summary"]
    assert response.json()["error"] in found["summary"]


def test_the_page_of_a_failed_request_begins_with_its_error(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    body = b'{"error": "no <tokenizer>"}'
    failed = shared.predict(spec, body, x_test="status=501,error=model-invalid")
    url = f"{shared.gateway.url}/console/requests/{failed.headers['x-request-id']}"
    text = shared.client.get(url).text
    assert "501 model-invalid: no &lt;tokenizer&gt;" in text


@pytest.mark.parametrize("status", [422, 501])
def test_a_model_that_only_other_files_can_mend_asks_nobody_to_try_again(
    harness: GatewayHarness, status: int
) -> None:
    spec = harness.declare()
    harness.start_pods("pod-a")
    harness.fail_load(LoadFailure(spec.key, "Unreadable", "is a pickle", 1, 9e12, status))
    response = harness.predict(spec)
    assert response.status_code == status
    assert "is a pickle" in response.json()["error"]
    assert "retry-after" not in response.headers
