"""gRPC requests with KServe's messages, and how failures are recorded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from common.inference_protocol.grpc_messages import messages
from tests.load.generator.conftest import LoadRun, WriteTrace


def _infer(request: Any, context: grpc.ServicerContext) -> Any:
    if request.model_name.endswith("full"):
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
    context.set_trailing_metadata(
        (
            ("x-pilotlight-start", "disk"),
            ("server-timing", "infer;dur=2.5"),
            ("x-pilotlight-pod", f"{len(request.raw_input_contents)}-{request.inputs[0].shape[0]}"),
            ("x-pilotlight-predict-pod", request.model_name),
        )
    )
    return messages.ModelInferResponse(model_name=request.model_name)


def _server_metadata(request: Any, context: grpc.ServicerContext) -> Any:
    del request, context
    return messages.ServerMetadataResponse(name="pilotlight")


@contextmanager
def _serving(*, is_ours: bool) -> Iterator[int]:
    """A server of KServe's messages, by its port; one like ours has server metadata."""
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(
            _infer,
            request_deserializer=messages.ModelInferRequest.FromString,
            response_serializer=messages.ModelInferResponse.SerializeToString,
        )
    }
    if is_ours:
        methods["ServerMetadata"] = grpc.unary_unary_rpc_method_handler(
            _server_metadata,
            request_deserializer=messages.ServerMetadataRequest.FromString,
            response_serializer=messages.ServerMetadataResponse.SerializeToString,
        )
    name = "inference.GRPCInferenceService"
    server = grpc.server(
        ThreadPoolExecutor(2), handlers=[grpc.method_handlers_generic_handler(name, methods)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_ours", "name"), [(True, "default~good"), (False, "good")], ids=["pilotlight", "kserve"]
)
def test_the_tenant_is_sent_to_our_servers_only(
    load_run: LoadRun, write_trace: WriteTrace, *, is_ours: bool, name: str
) -> None:
    trace = write_trace(["good"], count=1, gap_s=0.0)
    with _serving(is_ours=is_ours) as port:
        [row] = load_run.records(trace, f"127.0.0.1:{port}", "--protocol", "grpc")
    assert (row["status"], row["predict_pod"]) == (200, name)


@pytest.mark.slow
def test_responses_errors_and_missing_servers_over_grpc(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    trace, flags = write_trace(["good", "full"], count=2, gap_s=0.0), ("--protocol", "grpc")
    with _serving(is_ours=False) as port:
        url = f"127.0.0.1:{port}"
        rows = {row["model"]: row for row in load_run.records(trace, url, *flags)}
    assert (rows["good"]["status"], rows["good"]["error"]) == (200, None)
    assert (rows["good"]["start"], rows["good"]["infer_ms"]) == ("disk", 2.5)
    assert rows["good"]["entry_pod"] == "1-2"
    assert (rows["full"]["status"], rows["full"]["error"]) == (
        429,
        "gRPC RESOURCE_EXHAUSTED: no room",
    )
    again = load_run(trace, url, *flags, "--overwrite", "--json")
    assert again.status == 1
    assert "all 2 requests failed" in again.err
    assert again.document["by_status"] == {"0": 2}
