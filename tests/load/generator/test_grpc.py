"""gRPC: what a server of KServe's messages gets, and how its refusals are recorded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from pyarrow import parquet

if TYPE_CHECKING:
    from pathlib import Path

    from tests.load.generator.conftest import WriteTrace
    from tests.pilotlight.conftest import Cli


def _infer(request: Any, context: grpc.ServicerContext) -> Any:
    if request.model_name == "full":
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
    context.set_trailing_metadata((
        ("x-pilotlight-start", "disk"), ("server-timing", "infer;dur=2.5"),
        ("x-pilotlight-pod", f"{len(request.raw_input_contents)}-{request.inputs[0].shape[0]}"),
    ))  # fmt: skip
    return messages.ModelInferResponse(model_name=request.model_name)


@pytest.mark.slow
def test_answers_refusals_and_absence_over_grpc(
    cli: Cli, write_trace: WriteTrace, tmp_path: Path
) -> None:
    output = tmp_path / "run.parquet"
    handler = grpc.unary_unary_rpc_method_handler(
        _infer,
        request_deserializer=messages.ModelInferRequest.FromString,
        response_serializer=messages.ModelInferResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": handler}
    )
    server = grpc.server(ThreadPoolExecutor(2), handlers=[service])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    flags = ("--protocol", "grpc", "-o", str(output), "--url", f"127.0.0.1:{port}", "--json")
    trace = write_trace(["good", "full"], count=2, gap_s=0.0)
    try:
        ran = cli("load", "run", "--trace", trace, *flags)
    finally:
        server.stop(None).wait()
    assert ran.status == 0, ran.err
    rows = {row["model"]: row for row in parquet.read_table(output).to_pylist()}
    assert (rows["good"]["status"], rows["good"]["error"]) == (200, None)
    assert (rows["good"]["start"], rows["good"]["infer_ms"]) == ("disk", 2.5)
    assert rows["good"]["entry_pod"] == "1-2"
    assert (rows["full"]["status"], rows["full"]["error"]) == (
        429,
        "gRPC RESOURCE_EXHAUSTED: no room",
    )
    again = cli("load", "run", "--trace", trace, *flags, "--overwrite")
    assert again.status == 0, again.err
    assert again.document["by_status"] == {"0": 2}
