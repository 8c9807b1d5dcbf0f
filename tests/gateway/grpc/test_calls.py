"""Calls over gRPC through a real gateway process: names, metadata, errors, deadlines, tenants."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from common.inference_protocol.grpc_messages import messages
from registry.domain.model import ModelSpec
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, PodProcess, running_harness, wait_counts
from tests.gateway.grpc import calls

POOL = "grpc"
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def port() -> int:
    return servers.free_port()


@pytest.fixture(scope="module")
def harness(
    redis: servers.RedisServer,
    client: httpx.Client,
    tmp_path_factory: pytest.TempPathFactory,
    port: int,
) -> Iterator[GatewayHarness]:
    folder = tmp_path_factory.mktemp("grpc")
    with running_harness(folder, redis.url, POOL, client, grpc_port=port) as started:
        yield started


@pytest.fixture(scope="module")
def spec(harness: GatewayHarness) -> ModelSpec:
    return harness.declare("iris", namespace="team", served_name="flowers")


@pytest.fixture(scope="module")
def twins(harness: GatewayHarness, pods: PodProcess) -> ModelSpec:
    """Two models of one name, the second in the namespace of `iris`."""
    harness.declare("twin")
    return harness.declare("twin", namespace="team")


@pytest.fixture(scope="module")
def held(harness: GatewayHarness) -> ModelSpec:
    return harness.declare("hold-it")


@pytest.fixture(scope="module")
def pods(harness: GatewayHarness, spec: ModelSpec, held: ModelSpec) -> PodProcess:
    return harness.start_pods("pod-a", slots=4, warm=(spec, held))


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        pytest.param("team/iris", {}, id="model_name"),
        pytest.param("", {"mm_vmodel_id": "team/iris"}, id="mm-vmodel-id"),
        pytest.param("other", {"mm_model_id": "team/iris"}, id="mm-model-id"),
    ],
)
def test_a_call_names_its_model_by(
    port: int, pods: PodProcess, name: str, metadata: dict[str, str]
) -> None:
    content = calls.rows(name, 1.0).SerializeToString()
    answer, _ = calls.send(
        port,
        "ModelInfer",
        content,
        timeout_s=calls.TIMEOUT_S,
        x_test="response=headers",
        **metadata,
    )
    seen = json.loads(answer)
    assert seen["path"] == "/v2/models/team~iris/infer"
    headers = seen["headers"]
    assert headers["x-pilotlight-model-name"] == "iris"
    assert headers["content-type"] == "application/x-protobuf"
    assert int(headers["content-length"]) == len(content)
    assert not {"mm-vmodel-id", "mm-model-id", "te"} & headers.keys()


def test_a_response_has_the_second_name_that_the_message_has(port: int, pods: PodProcess) -> None:
    content = calls.rows("flowers", 1.0).SerializeToString()
    answer, _ = calls.send(
        port,
        "ModelInfer",
        content,
        timeout_s=calls.TIMEOUT_S,
        x_test="response=headers",
        mm_vmodel_id="team/iris",
    )
    assert json.loads(answer)["headers"]["x-pilotlight-model-name"] == "flowers"


@pytest.mark.parametrize(
    ("authority", "name", "path"),
    [
        pytest.param("iris.team.example.com", "iris", "team~iris", id="of-a-model"),
        pytest.param("iris-predictor.team.svc:80", "iris", "team~iris", id="of-its-predictor"),
        pytest.param("iris-team.example.com", "iris", "team~iris", id="with-dashes"),
        pytest.param("iris.team.example.com", "flowers", "team~iris", id="and-the-second-name"),
        pytest.param("iris.team.example.com", "team/iris", "team~iris", id="and-the-same-name"),
        pytest.param("models.example.com", "team/iris", "team~iris", id="of-the-gateway"),
        pytest.param("models.example.com", "twin", "default~twin", id="of-the-gateway-and-a-name"),
        pytest.param("twin.other.example.com", "team/iris", "team~iris", id="a-prefix-wins"),
        pytest.param("twin.team.example.com", "twin", "team~twin", id="of-a-namesake"),
    ],
)
def test_an_authority_chooses_the_model_as_a_host_does(
    port: int, pods: PodProcess, twins: ModelSpec, authority: str, name: str, path: str
) -> None:
    content = calls.rows(name, 1.0).SerializeToString()
    for _ in range(2):
        answer, _ = calls.send(
            port,
            "ModelInfer",
            content,
            authority=authority,
            x_test="response=headers",
            x_pilotlight_authority="iris.default.example.com",
        )
        assert json.loads(answer)["path"] == f"/v2/models/{path}/infer"


@pytest.mark.parametrize(
    ("authority", "name", "text"),
    [
        pytest.param("iris.team.example.com", "twin", "the path names model 'twin'", id="another"),
        pytest.param("twin.gone.example.com", "twin", "gone/twin does not exist", id="undeclared"),
        pytest.param("ghost.team.example.com", "twin", "team/ghost", id="of-no-model"),
    ],
)
def test_an_authority_of_another_model_is_not_found(
    port: int, pods: PodProcess, twins: ModelSpec, authority: str, name: str, text: str
) -> None:
    calls_of = {
        "ModelInfer": calls.rows(name, 1.0),
        "ModelReady": messages.ModelReadyRequest(name=name),
        "ModelMetadata": messages.ModelMetadataRequest(name=name),
    }
    for method, message in calls_of.items():
        error = calls.refused(port, method, message.SerializeToString(), authority=authority)
        assert error.code() is Code.NOT_FOUND, method
        assert text in error.details()


def test_readiness_and_metadata_of_an_authority(
    port: int, pods: PodProcess, twins: ModelSpec
) -> None:
    authority = "iris.team.example.com"
    request = messages.ModelReadyRequest(name="iris", version="1").SerializeToString()
    answer, _ = calls.send(port, "ModelReady", request, authority=authority)
    assert messages.ModelReadyResponse.FromString(answer).ready
    request = messages.ModelMetadataRequest(name="iris").SerializeToString()
    answer, _ = calls.send(port, "ModelMetadata", request, authority=authority)
    assert messages.ModelMetadataResponse.FromString(answer).name == "iris"
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        calls.send(port, method, b"", authority=authority)
    assert calls.refused(port, "ModelReady", request).code() is Code.NOT_FOUND


def test_a_large_message_and_its_answer_pass(port: int, pods: PodProcess) -> None:
    content = calls.rows("iris", *([1.0] * 2_000_000)).SerializeToString()
    answer, _ = calls.send(port, "ModelInfer", content, authority="iris.team.example.com")
    assert answer == content  # the pod of these tests answers with the request


def test_what_is_not_http2_closes_the_connection(port: int, pods: PodProcess) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    attacks = {
        "an index of no entry": bytes((0, 0, 1, 1, 4, 0, 0, 0, 1, 0xFF - 1)),
        "endless continuations": bytes((0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82))
        + bytes((0, 0x40, 0, 9, 0, 0, 0, 0, 1)) * 1
        + bytes(0x4000)
        + (bytes((0, 0x40, 0, 9, 0, 0, 0, 0, 1)) + bytes(0x4000)) * 9,
        "http/1": b"",
    }
    for name, frames in attacks.items():
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            connection.settimeout(20)
            start = preface if frames else b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 2
            with contextlib.suppress(OSError):
                connection.sendall(start + frames)
                while connection.recv(65536):
                    pass
        assert name
    calls.send(port, "ServerLive", b"")


def test_a_call_is_a_request_with_a_record(
    harness: GatewayHarness, port: int, pods: PodProcess
) -> None:
    response, metadata = calls.infer(
        port, calls.rows("team/iris", 1.0, identity="one"), x_request_id="by-grpc"
    )
    assert response.id == "one"  # the pod of these tests answers with the request
    assert metadata["x-request-id"] == "by-grpc"
    assert metadata["x-pilotlight-pod"] == "pod-a"
    assert metadata["x-pilotlight-reason"] == "warm"
    assert harness.explain("by-grpc")["model"] == "team/iris"


@pytest.mark.parametrize(
    ("content", "metadata", "code", "text"),
    [
        pytest.param(b"\xff\xff", {}, Code.INVALID_ARGUMENT, "ModelInferRequest", id="no message"),
        pytest.param(b"", {}, Code.INVALID_ARGUMENT, "1 to 512", id="no name"),
        pytest.param(
            b"", {"mm_vmodel_id": "n" * 600}, Code.INVALID_ARGUMENT, "has 600", id="long name"
        ),
        pytest.param(
            b"", {"mm_vmodel_id": "a/b/c"}, Code.INVALID_ARGUMENT, "may not contain", id="path"
        ),
        pytest.param(
            b"", {"mm_vmodel_id": "other"}, Code.NOT_FOUND, "default/other", id="not declared"
        ),
        pytest.param(
            b"",
            {"mm_vmodel_id": "team/iris", "x_pilotlight_policy": "no"},
            Code.INVALID_ARGUMENT,
            "x-pilotlight-policy",
            id="metadata of another kind",
        ),
    ],
)
def test_wrong_calls_are_refused(
    port: int,
    pods: PodProcess,
    content: bytes,
    metadata: dict[str, str],
    code: grpc.StatusCode,
    text: str,
) -> None:
    error = calls.refused(port, "ModelInfer", content, **metadata)
    assert error.code() is code
    assert text in error.details()


def test_an_error_of_the_pod_is_a_code(port: int, pods: PodProcess) -> None:
    content = calls.rows("team/iris", 1.0).SerializeToString()
    error = calls.refused(port, "ModelInfer", content, x_test="status=501")
    assert error.code() is Code.UNIMPLEMENTED


def test_a_deadline_ends_the_request_at_the_pod(
    harness: GatewayHarness, port: int, pods: PodProcess, held: ModelSpec
) -> None:
    content = calls.rows("hold-it", 1.0).SerializeToString()
    error = calls.refused(port, "ModelInfer", content, timeout_s=0.5)
    assert error.code() is Code.DEADLINE_EXCEEDED
    harness.wait_idle(pods)


@pytest.mark.parametrize(
    ("wishes", "code", "text"),
    [
        ("pieces=2,gap=hold", Code.DEADLINE_EXCEEDED, "deadline passed"),
        ("close=middle", Code.UNAVAILABLE, "pod"),
    ],
)
def test_a_response_that_is_not_completed_says_why(
    harness: GatewayHarness,
    port: int,
    pods: PodProcess,
    wishes: str,
    code: grpc.StatusCode,
    text: str,
) -> None:
    content = calls.rows("team/iris", 1.0).SerializeToString()
    error = calls.refused(
        port,
        "ModelInfer",
        content,
        x_test=wishes,
        x_pilotlight_deadline_ms="1500",
        x_request_id="broken",
    )
    assert (error.code(), text in error.details()) == (code, True), error.details()
    assert ("x-request-id", "broken") in error.trailing_metadata()
    harness.wait_idle(pods)


def test_a_cancelled_call_ends_the_request_at_the_pod(
    harness: GatewayHarness, port: int, pods: PodProcess, held: ModelSpec
) -> None:
    with calls.channel(port) as opened:
        call = opened.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(
            calls.rows("hold-it", 1.0).SerializeToString()
        )
        wait_counts(pods, "pod-a", busy=1)
        call.cancel()
        harness.wait_idle(pods)


def test_readiness_and_metadata(port: int, pods: PodProcess) -> None:
    ready = messages.ServerReadyResponse.FromString(calls.send(port, "ServerReady", b"")[0])
    live = messages.ServerLiveResponse.FromString(calls.send(port, "ServerLive", b"")[0])
    assert (ready.ready, live.live) == (True, True)
    named = messages.ModelReadyRequest(name="team/iris").SerializeToString()
    model = messages.ModelReadyResponse.FromString(calls.send(port, "ModelReady", named)[0])
    assert model.ready
    found = messages.ModelMetadataResponse.FromString(calls.send(port, "ModelMetadata", named)[0])
    assert (found.name, found.platform) == ("iris", "fake")
    assert [(each.name, list(each.shape)) for each in found.inputs] == [("text", [-1])]
    server = messages.ServerMetadataResponse.FromString(calls.send(port, "ServerMetadata", b"")[0])
    assert server.name == "pilotlight"
    unknown = messages.ModelReadyRequest(name="nothing").SerializeToString()
    assert calls.refused(port, "ModelReady", unknown).code() is Code.NOT_FOUND
    assert calls.refused(port, "RepositoryModelLoad", b"").code() is Code.UNIMPLEMENTED


def test_calls_need_the_key_of_their_tenant(
    redis: servers.RedisServer, harness: GatewayHarness, pods: PodProcess, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "team").write_text("k" * 32)
    port = servers.free_port()
    content = calls.rows("team/iris", 1.0).SerializeToString()
    named = messages.ModelReadyRequest(name="team/iris").SerializeToString()
    with servers.gateway(
        tmp_path / "gateway", redis_url=redis.url, pool=POOL, api_keys=keys, grpc_port=port
    ):
        for method, message in (("ModelInfer", content), ("ModelMetadata", named)):
            assert calls.refused(port, method, message).code() is Code.UNAUTHENTICATED
            wrong = calls.refused(port, method, message, authorization=f"Bearer {'w' * 32}")
            assert wrong.code() is Code.UNAUTHENTICATED
            calls.send(port, method, message, authorization=f"Bearer {'k' * 32}")
        assert calls.send(port, "ServerReady", b"")


def test_a_taken_port_is_an_error(
    redis: servers.RedisServer, harness: GatewayHarness, port: int, tmp_path: Path
) -> None:
    with servers.gateway(
        tmp_path, redis_url=redis.url, pool=POOL, grpc_port=port, wait_ready=False
    ) as gateway:
        assert gateway.process.wait(timeout=60) != 0
        assert f"gRPC port {port}" in gateway.log
