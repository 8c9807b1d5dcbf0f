"""OpenAI's protocol through the gateway: who is asked, what passes, what errors look like."""

from __future__ import annotations

import hashlib
import socket
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from registry.domain.model import RoutingPolicy
from tests import servers
from tests.gateway.conftest import exchange_bytes, wait_counts

if TYPE_CHECKING:
    import httpx

    from registry.domain.model import ModelSpec
    from tests.gateway.conftest import Floor

CALLS = ("completions", "chat/completions", "embeddings", "images/generations")


def ask(floor: Floor, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return floor.client.post(f"{floor.gateway.url}{path}", content=content, headers=named)


@pytest.mark.parametrize("call", CALLS)
def test_routes_by_the_model_that_the_body_names(floor: Floor, call: str) -> None:
    spec = floor.declare()
    floor.pods("pod-a", warm=spec)
    body = {"messages": [{"model": "x"}], "model": spec.name.name}
    answer = ask(floor, f"/openai/v1/{call}", body, x_test="answer=headers")
    assert answer.status_code == 200, answer.text
    assert answer.json()["path"] == f"/serving/{spec.name.path_segment}/openai/v1/{call}"
    assert answer.headers["x-pilotlight-pod"] == "pod-a"
    assert answer.headers["x-pilotlight-start"] == "warm"


def test_the_body_reaches_the_pod_as_it_was_sent(floor: Floor) -> None:
    spec = floor.declare()
    floor.pods("pod-a", warm=spec)
    body = b'{ "model" : "%s", "prompt": "\xc3\xa9\\u00e9" }' % spec.name.name.encode()
    assert ask(floor, "/openai/v1/completions", body).content == body


@pytest.mark.parametrize("size", [10_000, 700_000])
def test_finds_a_name_behind_a_long_prompt(floor: Floor, size: int) -> None:
    spec = floor.declare()
    floor.pods("pod-a", warm=spec)
    body = orjson.dumps({"prompt": "x" * size, "model": spec.name.name})
    answer = ask(floor, "/openai/v1/completions", body)
    assert answer.headers["x-test-sha256"] == hashlib.sha256(body).hexdigest()


def test_a_long_body_that_names_its_model_first_is_streamed(floor: Floor) -> None:
    spec = floor.declare()
    floor.pods("pod-a", warm=spec)
    body = orjson.dumps({"model": spec.name.name, "prompt": "x" * 5_000_000})
    answer = ask(floor, "/openai/v1/completions", body)
    assert answer.headers["x-test-sha256"] == hashlib.sha256(body).hexdigest()


def test_a_name_behind_more_than_the_gateway_holds_is_refused(floor: Floor) -> None:
    spec = floor.declare()
    body = orjson.dumps({"prompt": "x" * 2_000_000, "model": spec.name.name})
    answer = ask(floor, "/openai/v1/completions", body)
    assert answer.status_code == 400
    assert "within its first bytes" in answer.json()["error"]["message"]
    by_path = f"/serving/default/{spec.name.name}/openai/v1/completions"
    floor.pods("pod-a", warm=spec)
    assert ask(floor, by_path, body).status_code == 200


def test_prefix_and_host_name_models_of_other_namespaces(floor: Floor) -> None:
    spec = floor.declare(namespace="team")
    floor.pods("pod-a", warm=spec)
    path = f"/serving/team/{spec.name.name}/openai/v1/chat/completions"
    host = f"{spec.name.name}.team.example.com"
    for answer in (
        ask(floor, path, b"not looked at", x_test="answer=headers"),
        ask(floor, "/openai/v1/chat/completions", b"not looked at", x_test="answer=headers",
            host=host),
    ):  # fmt: skip
        assert answer.status_code == 200, answer.text
        assert answer.json()["path"].startswith(f"/serving/team~{spec.name.name}/openai/v1/")
    plain = ask(floor, "/openai/v1/completions", {"model": str(spec.name)})
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
def test_errors_have_openais_shape(
    floor: Floor, path: str, body: Any, status: int, code: str
) -> None:
    answer = ask(floor, f"/openai/v1/{path}", body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code
    assert answer.headers["x-request-id"]


def test_a_full_queue_is_a_rate_limit(floor: Floor) -> None:
    spec = floor.declare(queue_depth=0, routing=RoutingPolicy.COLOCATION_QUEUEING)
    pods = floor.pods("pod-a", warm=spec)
    busy = floor.in_background(spec, x_test="delay=hold")
    wait_counts(pods, "pod-a", busy=1)
    answer = ask(floor, "/openai/v1/completions", {"model": spec.name.name})
    pods.control("pod-a", "release")
    assert busy.result().status_code == 200
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1


def test_errors_of_the_pod_pass_as_they_are(floor: Floor) -> None:
    spec = floor.declare()
    floor.pods("pod-a", warm=spec)
    body = orjson.dumps({"model": spec.name.name})
    answer = ask(floor, "/openai/v1/completions", body, x_test="status=400")
    assert (answer.status_code, answer.content) == (400, body)


def test_a_stream_passes_piece_by_piece(floor: Floor) -> None:
    spec = floor.declare()
    pods = floor.pods("pod-a", warm=spec)
    with _stream(floor, spec, "pieces=3,gap=hold") as stream:
        pieces = stream.iter_raw()
        assert next(pieces)  # which came without the others
        assert floor.metric("pilotlight_gateway_reservations") == 1
        pods.control("pod-a", "release")
        assert sum(map(len, pieces)) > 0
    floor.wait_idle(pods)


def test_a_client_that_leaves_a_stream_frees_its_slot(floor: Floor) -> None:
    spec = floor.declare()
    pods = floor.pods("pod-a", warm=spec)
    with _stream(floor, spec, "pieces=1000,gap=0.05") as stream:
        assert next(stream.iter_raw())
    wait_counts(pods, "pod-a", left=1, busy=0)
    floor.wait_idle(pods)


def _stream(floor: Floor, spec: ModelSpec, wish: str) -> Any:
    return floor.client.stream(
        "POST",
        f"{floor.gateway.url}/openai/v1/chat/completions",
        content=orjson.dumps({"model": spec.name.name, "stream": True}),
        headers={"x-test": wish},
    )


def test_a_client_that_leaves_before_it_named_its_model_is_forgotten(floor: Floor) -> None:
    head = b"POST /openai/v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    before = floor.metric("pilotlight_gateway_client_disconnects_total")
    with socket.create_connection(("127.0.0.1", floor.gateway.port)) as connection:
        connection.sendall(head)
    servers.wait_until(
        lambda: floor.metric("pilotlight_gateway_client_disconnects_total") == before + 1,
        what="seen",
    )


def test_lists_the_models_of_a_namespace(floor: Floor) -> None:
    mine, other = floor.declare(), floor.declare(namespace="team-b")
    url = floor.gateway.url
    listed = floor.client.get(f"{url}/openai/v1/models").json()
    assert mine.name.name in [card["id"] for card in listed["data"]]
    assert other.name.name not in [card["id"] for card in listed["data"]]
    prefix = f"{url}/serving/team-b/{other.name.name}/openai/v1"
    assert [c["id"] for c in floor.client.get(f"{prefix}/models").json()["data"]] == [
        other.name.name
    ]
    assert floor.client.get(f"{url}/openai/v1/models/{mine.name.name}").json()["object"] == "model"
    missing = floor.client.get(f"{url}/openai/v1/models/nobody")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_another_method_is_not_allowed(floor: Floor) -> None:
    answer = exchange_bytes(
        floor.gateway.port, b"GET /openai/v1/completions HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 40")
