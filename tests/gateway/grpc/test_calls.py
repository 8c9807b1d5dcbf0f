"""Calls over gRPC through a real gateway process: names, metadata, errors, deadlines, tenants."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import grpc
import pytest

from gateway.grpc.messages import inference
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, wait_counts
from tests.gateway.grpc import calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from registry.domain.model import ModelSpec
    from tests.gateway.gateway_harness import PodProcess

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
    with ExitStack() as stack:
        gateway = stack.enter_context(
            servers.gateway(folder, redis_url=redis.url, pool=POOL, grpc_port=port)
        )
        started = GatewayHarness(redis.url, POOL, gateway, client, stack)
        yield started
        started.threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def spec(harness: GatewayHarness) -> ModelSpec:
    return harness.declare("iris", namespace="team")


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
            b"", {"mm_vmodel_id": "team/iris", "x_pilotlight_policy": "no"},
            Code.INVALID_ARGUMENT, "x-pilotlight-policy", id="metadata of another kind",
        ),
    ],
)  # fmt: skip
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


def test_each_message_of_a_stream_is_answered(port: int, pods: PodProcess) -> None:
    names = ("team/iris", "nothing", "team/iris")
    requests = [calls.rows(name, 1.0).SerializeToString() for name in names]
    with calls.channel(port) as opened:
        stream = opened.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = list(stream(iter(requests), timeout=calls.TIMEOUT_S))
    # ModelStreamInferResponse of Triton: an error is field 1, a response field 2
    assert [answer[0] >> 3 for answer in answers] == [2, 1, 2]
    assert b"default/nothing" in answers[1]
    assert answers[0].endswith(requests[0])


def test_readiness_and_metadata(port: int, pods: PodProcess) -> None:
    ready = inference.ServerReadyResponse.FromString(calls.send(port, "ServerReady", b"")[0])
    live = inference.ServerLiveResponse.FromString(calls.send(port, "ServerLive", b"")[0])
    assert (ready.ready, live.live) == (True, True)
    named = inference.ModelReadyRequest(name="team/iris").SerializeToString()
    model = inference.ModelReadyResponse.FromString(calls.send(port, "ModelReady", named)[0])
    assert model.ready
    found = inference.ModelMetadataResponse.FromString(calls.send(port, "ModelMetadata", named)[0])
    assert (found.name, found.platform) == ("iris", "fake")
    assert [(each.name, list(each.shape)) for each in found.inputs] == [("text", [-1])]
    server = inference.ServerMetadataResponse.FromString(calls.send(port, "ServerMetadata", b"")[0])
    assert server.name == "pilotlight"
    unknown = inference.ModelReadyRequest(name="nothing").SerializeToString()
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
    named = inference.ModelReadyRequest(name="team/iris").SerializeToString()
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
