"""Short forms of the gRPC calls that the runtime's tests make, by the protocol's messages."""

import struct
from operator import methodcaller
from typing import Any

import grpc

from common.inference_protocol.grpc_messages import INFERENCE, messages

TIMEOUT_S = 180.0
OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


def channel(port: int) -> grpc.Channel:
    """A channel to a pod on this machine, without limits of its own."""
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)


class Stub:
    """A client of the service: each method of the protocol by its name."""

    def __init__(self, to_pod: grpc.Channel) -> None:
        self._channel = to_pod

    def __getattr__(self, method: str) -> grpc.UnaryUnaryMultiCallable:
        return self._channel.unary_unary(
            f"/{INFERENCE}/{method}",
            request_serializer=methodcaller("SerializeToString"),
            response_deserializer=getattr(messages, f"{method}Response").FromString,
        )


def call(
    port: int, method: str, request: Any, *, timeout_s: float = TIMEOUT_S, **metadata: str
) -> Any:
    """The answer to one call; metadata names are given with underscores."""
    named = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    with channel(port) as to_pod:
        stub = Stub(to_pod)
        return getattr(stub, method)(request, timeout=timeout_s, metadata=named)


def refused(port: int, method: str, request: Any, **options: Any) -> grpc.RpcError:
    """The error of a call that must fail."""
    try:
        answer = call(port, method, request, **options)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"{method} was answered: {answer}")


def send_bytes(port: int, method: str, content: bytes) -> bytes:
    """A call with a message as it is."""
    with channel(port) as to_pod:
        send = to_pod.unary_unary(f"/inference.GRPCInferenceService/{method}")
        answer: bytes = send(content, timeout=TIMEOUT_S)
        return answer


def infer_texts(model: str, *texts: str, is_raw: bool = False, identity: str = "") -> Any:
    """A `ModelInferRequest` with one tensor of strings."""
    request = messages.ModelInferRequest(model_name=model, id=identity)
    entry = request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    values = [text.encode() for text in texts]
    if is_raw:
        parts = [struct.pack("<I", len(value)) + value for value in values]
        request.raw_input_contents.append(b"".join(parts))
    else:
        entry.contents.bytes_contents.extend(values)
    return request
