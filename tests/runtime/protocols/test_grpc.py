"""The pod over gRPC: responses, status codes, deadlines, cancellation, limits, drain."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from common.inference_protocol.grpc_messages import messages
from common.tls import PartTls
from runtime.protocols.servers import GrpcServer
from runtime.settings import KSERVE_GRPC_PORT
from tests import servers
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, metric, post, predict

MOST_BYTES = 4_000_000


@dataclass(frozen=True)
class Served:
    """A pod and the port of its gRPC service."""

    pod: servers.Pod
    port: int


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, models: Path) -> Served:
    shared_cluster.declare("classifier", models / "tiny-bert")
    shared_cluster.declare("cold", models / "tiny-bert")
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    shared_cluster.declare("broken", models / "nothing-there")
    port = servers.free_port()
    pod = shared_cluster.pod(
        slots=2, grpc_port=port, max_body_bytes=MOST_BYTES, allow_simulated_work=True
    )
    return Served(pod, port)


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "typed"])
def test_agrees_with_http(served: Served, is_raw: bool) -> None:
    request = rpc.infer_texts("default~embedder", "one", "two", is_raw=is_raw, identity="r-1")
    response = rpc.call(served.port, "ModelInfer", request)
    expected = predict(served.pod.url, "embedder", "one", "two").json()["predictions"]
    (output,) = response.outputs
    assert (response.id, response.model_name) == ("r-1", "embedder")
    assert (output.name, output.datatype, list(output.shape)) == ("embedding", "FP32", [2, 32])
    assert bool(response.raw_output_contents) == is_raw
    values = (
        np.frombuffer(response.raw_output_contents[0], np.float32)
        if is_raw
        else np.array(output.contents.fp32_contents)
    )
    np.testing.assert_allclose(values, np.ravel(expected), rtol=1e-5)


def test_health_and_metadata(served: Served) -> None:
    assert rpc.call(served.port, "ServerLive", messages.ServerLiveRequest()).live
    assert rpc.call(served.port, "ServerReady", messages.ServerReadyRequest()).ready
    server = rpc.call(served.port, "ServerMetadata", messages.ServerMetadataRequest())
    assert server.name == "pilotlight"
    assert "binary_tensor_data" in server.extensions
    model = rpc.call(
        served.port, "ModelMetadata", messages.ModelMetadataRequest(name="default~cold")
    )
    assert [(each.name, each.datatype) for each in model.outputs] == [
        ("label", "BYTES"),
        ("score", "FP32"),
    ]
    assert list(model.inputs[0].shape) == [-1]


def test_load_and_unload_succeed(served: Served) -> None:
    ready = messages.ModelReadyRequest(name="default~classifier")
    for _ in range(2):
        loaded = rpc.call(
            served.port,
            "RepositoryModelLoad",
            messages.RepositoryModelLoadRequest(model_name="default~classifier"),
        )
        assert (loaded.model_name, loaded.isLoaded) == ("default~classifier", True)
        assert rpc.call(served.port, "ModelReady", ready).ready
        unloaded = rpc.call(
            served.port,
            "RepositoryModelUnload",
            messages.RepositoryModelUnloadRequest(model_name="default~classifier"),
        )
        assert unloaded.isUnloaded
        assert not rpc.call(served.port, "ModelReady", ready).ready


def test_response_has_provenance_headers(served: Served) -> None:
    with rpc.channel(served.port) as to_pod:
        _, call = rpc.Stub(to_pod).ModelInfer.with_call(
            rpc.infer_texts("embedder", "x"), timeout=60, metadata=[("x-request-id", "abc")]
        )
    metadata = dict(call.trailing_metadata())
    assert metadata["x-pilotlight-pod"] == served.pod.name
    assert metadata["x-request-id"] == "abc"
    assert "infer;dur=" in metadata["server-timing"]


NOT_FOUND = grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "request_message", "code"),
    [
        pytest.param("ModelInfer", rpc.infer_texts("nobody", "x"), NOT_FOUND, id="infer"),
        pytest.param(
            "ModelReady", messages.ModelReadyRequest(name="nobody"), NOT_FOUND, id="ready"
        ),
        pytest.param(
            "ModelMetadata", messages.ModelMetadataRequest(name="nobody"), NOT_FOUND, id="metadata"
        ),
        pytest.param(
            "RepositoryModelLoad",
            messages.RepositoryModelLoadRequest(model_name="nobody"),
            NOT_FOUND,
            id="load",
        ),
        pytest.param(
            "RepositoryModelUnload",
            messages.RepositoryModelUnloadRequest(model_name="nobody"),
            NOT_FOUND,
            id="unload",
        ),
        pytest.param(
            "ModelReady",
            messages.ModelReadyRequest(name="embedder", version="7"),
            NOT_FOUND,
            id="version",
        ),
        pytest.param(
            "RepositoryModelLoad",
            messages.RepositoryModelLoadRequest(),
            grpc.StatusCode.INVALID_ARGUMENT,
            id="no-name",
        ),
        pytest.param(
            "RepositoryModelLoad",
            messages.RepositoryModelLoadRequest(model_name="broken"),
            grpc.StatusCode.UNAVAILABLE,
            id="cannot-be-loaded",
        ),
        pytest.param(
            "ModelInfer",
            messages.ModelInferRequest(model_name="embedder"),
            grpc.StatusCode.INVALID_ARGUMENT,
            id="no-inputs",
        ),
    ],
)
def test_errors_have_their_codes(
    served: Served, method: str, request_message: object, code: grpc.StatusCode
) -> None:
    error = rpc.refused(served.port, method, request_message)
    assert error.code() is code, error
    assert error.details()


def test_malformed_message_is_invalid_argument(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        rpc.send_bytes(served.port, "ModelInfer", b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "ModelInferRequest" in str(caught.value.details())


def test_long_error_message_is_truncated(served: Served) -> None:
    request = rpc.infer_texts("embedder", "x")
    request.outputs.add(name="é" * 100_000)
    assert rpc.refused(served.port, "ModelInfer", request).code() is (
        grpc.StatusCode.INVALID_ARGUMENT
    )


def test_refuses_a_message_over_the_limit(served: Served) -> None:
    request = rpc.infer_texts("embedder", "x" * (MOST_BYTES + 2 * 1024**2))
    error = rpc.refused(served.port, "ModelInfer", request)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_full_slots_are_resource_exhausted(served: Served) -> None:
    rpc.call(served.port, "ModelInfer", rpc.infer_texts("embedder", "x"))
    request = rpc.infer_texts("embedder", "x")
    long = [("x-pilotlight-simulate", "postprocess=600")]
    with rpc.channel(served.port) as to_pod:
        stub = rpc.Stub(to_pod)
        running = [stub.ModelInfer.future(request, metadata=long) for _ in range(2)]
        servers.wait_until(lambda: metric(served.pod.url, "pilotlight_pod_slots_used") == 2)
        error = rpc.refused(served.port, "ModelInfer", request)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert predict(served.pod.url, "embedder", "x").status_code == 429  # shared with HTTP
        for each in running:
            each.cancel()
        servers.wait_until(lambda: metric(served.pod.url, "pilotlight_pod_slots_used") == 0)


def test_clients_deadline_applies(served: Served) -> None:
    rpc.call(served.port, "ModelInfer", rpc.infer_texts("embedder", "x"))
    error = rpc.refused(
        served.port,
        "ModelInfer",
        rpc.infer_texts("embedder", "x"),
        timeout_s=0.3,
        x_pilotlight_simulate="postprocess=600",
    )
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    servers.wait_until(lambda: metric(served.pod.url, "pilotlight_pod_slots_used") == 0)


def test_deadline_passed_in_the_pod_is_reported(served: Served) -> None:
    error = rpc.refused(
        served.port, "ModelInfer", rpc.infer_texts("embedder", "x"), x_pilotlight_deadline_ms="-1"
    )
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "deadline had passed" in error.details()
    assert dict(error.trailing_metadata())["x-pilotlight-not-executed"] == "deadline"


def test_cancelled_call_frees_its_slot(served: Served) -> None:
    rpc.call(served.port, "ModelInfer", rpc.infer_texts("embedder", "x"))
    gone = metric(served.pod.url, "pilotlight_pod_requests_total", status="gone")
    with rpc.channel(served.port) as to_pod:
        running = rpc.Stub(to_pod).ModelInfer.future(
            rpc.infer_texts("embedder", "x"),
            metadata=[("x-pilotlight-simulate", "postprocess=600")],
        )
        servers.wait_until(lambda: metric(served.pod.url, "pilotlight_pod_slots_used") == 1)
        running.cancel()
        servers.wait_until(lambda: metric(served.pod.url, "pilotlight_pod_slots_used") == 0)
    count = "pilotlight_pod_requests_total"
    servers.wait_until(lambda: metric(served.pod.url, count, status="gone") == gone + 1)


def test_health_responds_while_large_tensors_are_decoded(served: Served) -> None:
    request = messages.ModelInferRequest(model_name="embedder")
    entry = request.inputs.add(name="text", datatype="FP32", shape=[900_000])
    entry.contents.fp32_contents.extend([1.0] * 900_000)
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(rpc.refused, served.port, "ModelInfer", request)
        while not running.done():
            assert get(f"{served.pod.url}/v2/health/live").json() == {"live": True}
    assert running.result().code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "must be BYTES, was FP32" in str(running.result().details())


@pytest.mark.slow
def test_draining_pod_is_unavailable_and_finishes_requests(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    port = servers.free_port()
    with cluster.pod_context("pod-b", slots=2, grpc_port=port, allow_simulated_work=True) as pod:
        request = rpc.infer_texts("m", "x")
        rpc.call(port, "ModelInfer", request)
        with ThreadPoolExecutor(1) as clients, rpc.channel(port) as to_pod:
            stub = rpc.Stub(to_pod)
            assert stub.ServerReady(messages.ServerReadyRequest()).ready
            running = clients.submit(
                rpc.call, port, "ModelInfer", request, x_pilotlight_simulate="postprocess=8"
            )
            servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
            os.kill(pod.pid, signal.SIGTERM)
            servers.wait_until(lambda: not stub.ServerReady(messages.ServerReadyRequest()).ready)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(request)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "draining" in caught.value.details()
            load = messages.RepositoryModelLoadRequest(model_name="m")
            with pytest.raises(grpc.RpcError) as caught:
                stub.RepositoryModelLoad(load)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert post(f"{pod.url}/v2/repository/models/m/load").status_code == 503
            assert running.result().outputs
        event = forkserver.wait_event(exited="pod-b")
        assert event["status"] == 0
        forkserver.events.append(event)  # the context waits for it, too


def test_infers_at_the_predict_pod(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    port = servers.free_port()
    cluster.pod("entry", grpc_port=port)
    other = cluster.pod("other")
    request = rpc.infer_texts("m", "x")
    with rpc.channel(port) as to_pod:
        response, call = rpc.Stub(to_pod).ModelInfer.with_call(
            request, metadata=[("x-pilotlight-predict", other.address)]
        )
    metadata = dict(call.trailing_metadata())
    assert (metadata["x-pilotlight-pod"], metadata["x-pilotlight-predict-pod"]) == (
        "entry",
        "other",
    )
    assert [output.name for output in response.outputs] == ["label", "score"]


def test_forwards_the_refusal_of_the_predict_pod(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-t5")
    port = servers.free_port()
    cluster.pod("entry", grpc_port=port)
    other = cluster.pod("other", memory_bytes=1000)
    error = rpc.refused(
        port, "ModelInfer", rpc.infer_texts("m", "x"), x_pilotlight_predict=other.address
    )
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "1000 bytes" in error.details()
    assert dict(error.trailing_metadata())["x-pilotlight-not-executed"] == "no-memory"


def test_only_kserves_default_port_falls_back_to_a_free_one() -> None:
    async def run() -> None:
        def server() -> GrpcServer:
            handler = grpc.method_handlers_generic_handler("none", {})
            return GrpcServer(handler, max_body_bytes=1, slots=1, tls=PartTls())

        first, second, third = server(), server(), server()
        await first.start("127.0.0.1", KSERVE_GRPC_PORT)
        other = await second.start("127.0.0.1", KSERVE_GRPC_PORT)
        assert other != KSERVE_GRPC_PORT
        with pytest.raises(RuntimeError):
            await third.start("127.0.0.1", other)
        await first.stop(0)
        await second.stop(0)

    asyncio.run(run())


def test_call_longer_than_the_drain_is_unavailable(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    port = servers.free_port()
    with cluster.pod_context(
        "pod-b", grpc_port=port, drain_timeout=0.3, allow_simulated_work=True
    ) as pod:
        request = rpc.infer_texts("m", "x")
        rpc.call(port, "ModelInfer", request)
        with ThreadPoolExecutor(1) as clients:
            running = clients.submit(
                rpc.refused, port, "ModelInfer", request, x_pilotlight_simulate="postprocess=600"
            )
            servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
            os.kill(pod.pid, signal.SIGTERM)
            error = running.result()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "pod-b ended" in error.details()
        event = forkserver.wait_event(exited="pod-b")
        assert event["status"] == 0
        forkserver.events.append(event)
