"""Calls over gRPC to a gateway, by messages of V2 and others."""

import struct
from typing import Any

import grpc

from common.inference_protocol.grpc_messages import INFERENCE, messages

TIMEOUT_S = 60.0
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]


def channel(port: int, authority: str = "") -> grpc.Channel:
    options = [*OPTIONS, ("grpc.default_authority", authority)] if authority else OPTIONS
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)


def send(
    port: int,
    method: str,
    content: bytes,
    *,
    timeout_s: float = TIMEOUT_S,
    authority: str = "",
    **metadata: str,
) -> tuple[bytes, dict[str, str]]:
    """The answer to one call as it is, and its metadata; names are given with underscores."""
    named = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    with channel(port, authority) as opened:
        path = method if method.startswith("/") else f"/{INFERENCE}/{method}"
        answer, call = opened.unary_unary(path).with_call(
            content, timeout=timeout_s, metadata=named
        )
        return answer, dict(call.trailing_metadata())


def infer(port: int, request: Any, **options: Any) -> tuple[Any, dict[str, str]]:
    answer, metadata = send(port, "ModelInfer", request.SerializeToString(), **options)
    return messages.ModelInferResponse.FromString(answer), metadata


def refused(port: int, method: str, content: bytes, **options: Any) -> Any:
    """The error of a call that must fail."""
    try:
        answer = send(port, method, content, **options)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"{method} was answered: {answer}")


def rows(model: str, *values: float, identity: str = "") -> Any:
    """A `ModelInferRequest` of one row of numbers."""
    request = messages.ModelInferRequest(model_name=model, id=identity)
    request.inputs.add(name="x", datatype="FP32", shape=[1, len(values)])
    request.raw_input_contents.append(struct.pack(f"<{len(values)}f", *values))
    return request
