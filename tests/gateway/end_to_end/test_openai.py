"""OpenAI's protocol through a real gateway process."""

import hashlib
import socket
from typing import Any

import httpx
import orjson
import pytest

from registry.domain.model import UNREADABLE, LoadFailure, ModelName, ModelSpec, RoutingPolicy, Task
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, wait_counts

CALLS = ("completions", "chat/completions", "embeddings", "images/generations", "responses")


def ask(harness: GatewayHarness, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return harness.client.post(f"{harness.gateway.url}{path}", content=content, headers=named)


@pytest.mark.parametrize("call", CALLS)
def test_routes_by_the_model_field_of_the_body(harness: GatewayHarness, call: str) -> None:
    spec, _ = harness.start_warm_pod()
    body = {"messages": [{"model": "x"}], "model": spec.name.name}
    response = ask(harness, f"/openai/v1/{call}", body, x_test="response=headers")
    assert response.status_code == 200, response.text
    assert response.json()["path"] == f"/serving/{spec.name.path_segment}/openai/v1/{call}"
    assert response.headers["x-pilotlight-pod"] == "pod-a"
    assert response.headers["x-pilotlight-start"] == "warm"


def test_the_body_is_forwarded_unchanged(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod()
    body = b'{ "model" : "%s", "prompt": "\xc3\xa9\\u00e9" }' % spec.name.name.encode()
    assert ask(harness, "/openai/v1/completions", body).content == body


@pytest.mark.parametrize("size", [10_000, 700_000])
def test_finds_a_name_after_a_long_prompt(harness: GatewayHarness, size: int) -> None:
    spec, _ = harness.start_warm_pod()
    body = orjson.dumps({"prompt": "x" * size, "model": spec.name.name})
    response = ask(harness, "/openai/v1/completions", body)
    assert response.headers["x-test-sha256"] == hashlib.sha256(body).hexdigest()


def test_a_long_body_that_names_its_model_first_is_streamed(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod()
    body = orjson.dumps({"model": spec.name.name, "prompt": "x" * 5_000_000})
    response = ask(harness, "/openai/v1/completions", body)
    assert response.headers["x-test-sha256"] == hashlib.sha256(body).hexdigest()


def test_rejects_a_name_beyond_the_buffered_part(harness: GatewayHarness) -> None:
    spec = harness.declare()
    body = orjson.dumps({"prompt": "x" * 2_000_000, "model": spec.name.name})
    response = ask(harness, "/openai/v1/completions", body)
    assert response.status_code == 400
    assert "within its first bytes" in response.json()["error"]["message"]
    by_path = f"/serving/default/{spec.name.name}/openai/v1/completions"
    harness.start_pods("pod-a", warm=spec)
    assert ask(harness, by_path, body).status_code == 200


def test_prefix_and_host_name_models_of_other_namespaces(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod(namespace="team")
    path = f"/serving/team/{spec.name.name}/openai/v1/chat/completions"
    host = f"{spec.name.name}.team.example.com"
    for response in (
        ask(harness, path, b"not looked at", x_test="response=headers"),
        ask(
            harness,
            "/openai/v1/chat/completions",
            b"not looked at",
            x_test="response=headers",
            host=host,
        ),
    ):
        assert response.status_code == 200, response.text
        assert response.json()["path"].startswith(f"/serving/team~{spec.name.name}/openai/v1/")
    plain = ask(harness, "/openai/v1/completions", {"model": str(spec.name)})
    assert plain.status_code == 404
    assert "/serving/NAMESPACE/NAME" in plain.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        pytest.param("completions", {"model": "nobody"}, 404, "model_not_found", id="unknown"),
        pytest.param("completions", {"prompt": "x"}, 400, "bad-request", id="no-model"),
        pytest.param("completions", b"", 400, "bad-request", id="empty"),
        pytest.param("embeddings", b'{"model', 400, "bad-request", id="cut-off"),
        pytest.param("chat/completions", {"model": 3}, 400, "bad-request", id="number"),
    ],
)
def test_errors_have_openais_format(
    harness: GatewayHarness, path: str, body: Any, status: int, code: str
) -> None:
    response = ask(harness, f"/openai/v1/{path}", body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code
    assert response.headers["x-request-id"]


def test_a_full_queue_is_a_rate_limit(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(queue_depth=0, routing=RoutingPolicy.COLOCATION_QUEUEING)
    busy = harness.hold_pod(pods, spec, x_test="delay=hold")
    response = ask(harness, "/openai/v1/completions", {"model": spec.name.name})
    pods.control("pod-a", "release")
    assert busy.result().status_code == 200
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert int(response.headers["retry-after"]) >= 1


def test_errors_of_the_pod_are_forwarded_unchanged(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod()
    body = orjson.dumps({"model": spec.name.name})
    response = ask(harness, "/openai/v1/completions", body, x_test="status=400")
    assert (response.status_code, response.content) == (400, body)


def test_a_stream_is_forwarded_chunk_by_chunk(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    with _stream(harness, spec, "pieces=3,gap=hold") as stream:
        pieces = stream.iter_raw()
        assert next(pieces)  # before the others were sent
        assert harness.metric("pilotlight_gateway_reservations") == 1
        pods.control("pod-a", "release")
        assert sum(map(len, pieces)) > 0
    harness.wait_idle(pods)


def test_a_client_that_disconnects_from_a_stream_frees_its_slot(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    with _stream(harness, spec, "pieces=1000,gap=0.05") as stream:
        assert next(stream.iter_raw())
    wait_counts(pods, "pod-a", disconnected=1, busy=0)
    harness.wait_idle(pods)


def _stream(harness: GatewayHarness, spec: ModelSpec, wish: str) -> Any:
    return harness.client.stream(
        "POST",
        f"{harness.gateway.url}/openai/v1/chat/completions",
        content=orjson.dumps({"model": spec.name.name, "stream": True}),
        headers={"x-test": wish},
    )


def test_a_client_that_disconnects_before_naming_its_model_is_counted(
    harness: GatewayHarness,
) -> None:
    head = b"POST /openai/v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    before = harness.metric("pilotlight_gateway_client_disconnects_total")
    with socket.create_connection(("127.0.0.1", harness.gateway.port)) as connection:
        connection.sendall(head)
    servers.wait_until(
        lambda: harness.metric("pilotlight_gateway_client_disconnects_total") == before + 1,
        what="disconnect counted",
    )


def test_lists_the_models_of_a_namespace(harness: GatewayHarness) -> None:
    mine, other = harness.declare(), harness.declare(namespace="team-b")
    url = harness.gateway.url
    listed = harness.client.get(f"{url}/openai/v1/models").json()
    assert mine.name.name in [card["id"] for card in listed["data"]]
    assert other.name.name not in [card["id"] for card in listed["data"]]
    prefix = f"{url}/serving/team-b/{other.name.name}/openai/v1"
    assert [c["id"] for c in harness.client.get(f"{prefix}/models").json()["data"]] == [
        other.name.name
    ]
    assert (
        harness.client.get(f"{url}/openai/v1/models/{mine.name.name}").json()["object"] == "model"
    )
    missing = harness.client.get(f"{url}/openai/v1/models/nobody")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_lists_only_models_that_an_endpoint_of_openais_is_for(harness: GatewayHarness) -> None:
    namespace = "openai-kinds"
    kinds: dict[str, dict[str, Any]] = {
        "llm": {},
        "classifier": {},
        "pickle": {},
        "labels": {"task": Task.TEXT_CLASSIFICATION},
        "vectors": {"task": Task.TEXT_EMBEDDING},
        "iris": {"format": "sklearn"},
        "lost": {},
    }
    specs = {
        name: ModelSpec(ModelName(namespace, name), f"file:///{name}", **more)
        for name, more in kinds.items()
    }
    harness.run(lambda registry: registry.put_models(list(specs.values())))
    harness.start_pods("pod-a")
    harness.fail_load(LoadFailure(specs["lost"].key, UNREADABLE, "no such bucket", 1, 0.0))
    url = f"{harness.gateway.url}/serving/{namespace}/none/openai/v1/models"
    listed = harness.client.get(url).json()["data"]
    assert [card["id"] for card in listed] == ["llm", "vectors"]


def test_other_methods_are_not_allowed(harness: GatewayHarness) -> None:
    response = exchange_bytes(
        harness.gateway.port, b"GET /openai/v1/completions HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    assert response.startswith(b"HTTP/1.1 40")


@pytest.mark.parametrize("call", CALLS)
def test_other_servers_path_leads_to_the_same_endpoint(harness: GatewayHarness, call: str) -> None:
    spec, _ = harness.start_warm_pod()
    response = ask(harness, f"/v1/{call}", {"model": spec.name.name}, x_test="response=headers")
    assert response.json()["path"] == f"/serving/{spec.name.path_segment}/openai/v1/{call}"
    missing = ask(harness, f"/v1/{call}", {"model": "nobody"})
    assert missing.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/openai/v1/audio/speech"),
        ("GET", "/openai/v1/files"),
        ("POST", "/openai/v1/rerank"),
        ("POST", "/v1/moderations"),
        ("POST", "/serving/default/m/openai/v1/audio/speech"),
    ],
)
def test_what_is_not_served_is_an_error_of_openais_form(
    harness: GatewayHarness, method: str, path: str
) -> None:
    response = harness.client.request(method, f"{harness.gateway.url}{path}", json={"model": "m"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert "/openai/v1, with completions, chat/completions, responses" in error["message"]


def test_paths_of_kserve_keep_their_errors(harness: GatewayHarness) -> None:
    assert harness.client.get(f"{harness.gateway.url}/v1/models/nobody").json() == {
        "error": "model default/nobody does not exist"
    }


def test_a_models_own_address_lists_it_alone(harness: GatewayHarness) -> None:
    one, other = harness.declare(), harness.declare()
    own = {"host": f"{one.name.name}.default.example.com"}
    for prefix, headers in ((f"/serving/default/{one.name.name}", {}), ("", own)):
        url = f"{harness.gateway.url}{prefix}"

        def read(path: str, url: str = url, headers: dict[str, str] = headers) -> Any:
            return harness.client.get(f"{url}{path}", headers=headers).json()

        assert [card["id"] for card in read("/openai/v1/models")["data"]] == [one.name.name]
        assert read("/v1/models") == read("/v2/models") == {"models": [one.name.name]}
        assert read(f"/openai/v1/models/{one.name.name}")["object"] == "model"
        missing = read(f"/openai/v1/models/{other.name.name}")
        assert missing["error"]["code"] == "model_not_found"
