"""Request and response bodies of all inference protocols: JSON, CloudEvents, gRPC's messages.

Raw contents of messages are kept as buffers. A response is raw if its request was, or if one of its
datatypes can only be sent raw.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from google.protobuf.message import DecodeError
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

from common.shown_value import kind_of, shown
from runtime.errors import InvalidRequest
from runtime.wire.tensor_encodings import from_raw, string_array, to_raw
from runtime.wire.tensors import (
    BYTES,
    NUMPY_OF,
    RAW_ONLY,
    Tensor,
    TensorSpec,
    check_unique_names,
    does_not_fit,
    parse_tensor_spec,
)
from runtime.wire.v2 import (
    EncodedBody,
    RequestedOutput,
    V2Request,
    decode_request,
    encode_response,
    parse_object,
    select_outputs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTENTS_OF: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""The field of `InferTensorContents` that holds a datatype."""


def parse_message(kind: Any, content: bytes) -> Any:
    """A message of class `kind`; raises InvalidRequest."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InvalidRequest(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from error


def decode_request_message(content: bytes) -> V2Request:
    """The tensors of a serialised `ModelInferRequest`; raises InvalidRequest."""
    return decode_message(parse_message(messages.ModelInferRequest, content))


def decode_message(message: Any) -> V2Request:
    """The tensors of a `ModelInferRequest`; raises InvalidRequest."""
    raw = message.raw_input_contents
    if not message.inputs:
        raise InvalidRequest("'inputs' must hold one tensor or more")
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"raw_input_contents must have one entry for each of the {len(message.inputs)} inputs,"
            f" has {len(raw)}"
        )
    inputs = tuple(
        _decode_tensor(entry, raw[index] if raw else None, f"inputs[{index}]")
        for index, entry in enumerate(message.inputs)
    )
    check_unique_names([tensor.name for tensor in inputs], "'inputs'")
    check_unique_names([entry.name for entry in message.outputs], "'outputs'")
    return V2Request(
        inputs=inputs,
        id=message.id or None,
        is_binary=bool(raw),
        outputs=tuple(RequestedOutput(entry.name, bool(raw)) for entry in message.outputs),
    )


def _decode_tensor(entry: Any, raw: bytes | None, path: str) -> Tensor:
    spec = parse_tensor_spec(entry.name, entry.datatype, list(entry.shape), path)
    if raw is None:
        return _from_contents(entry.contents, spec)
    if entry.HasField("contents"):
        raise InvalidRequest(f"{path}: 'contents' and raw_input_contents exclude each other")
    return from_raw(memoryview(raw), spec)


def _from_contents(contents: Any, spec: TensorSpec) -> Tensor:
    if spec.datatype in RAW_ONLY:
        raise InvalidRequest(f"{spec.path}: {spec.datatype} can only be sent in raw_input_contents")
    field = CONTENTS_OF[spec.datatype]
    values = getattr(contents, field)
    if len(values) != spec.count:
        raise InvalidRequest(
            f"{spec.path}: shape {list(spec.shape)} needs {spec.count} elements in {field},"
            f" has {len(values)}"
        )
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, string_array(list(values), spec))
    try:
        array = np.fromiter(values, NUMPY_OF[spec.datatype], len(values))
    except (ValueError, OverflowError) as error:
        raise does_not_fit(values, field, spec) from error
    return Tensor(spec.name, spec.datatype, array.reshape(spec.shape))


def encode_message(tensors: Sequence[Tensor], *, model_name: str, request: V2Request) -> bytes:
    """A serialised `ModelInferResponse`; raises InvalidRequest."""
    selected = [tensor for tensor, _ in select_outputs(tensors, request)]
    is_raw = request.is_binary or any(tensor.datatype in RAW_ONLY for tensor in selected)
    response = messages.ModelInferResponse(model_name=model_name, id=request.id or "")
    for tensor in selected:
        entry = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if is_raw:
            response.raw_output_contents.append(to_raw(tensor))
        else:
            getattr(entry.contents, CONTENTS_OF[tensor.datatype]).extend(
                tensor.data.ravel().tolist()
            )
    content: bytes = response.SerializeToString()
    return content


_EVENT_FIELDS = frozenset(("specversion", "id", "source", "type"))
"""What every CloudEvent has (CloudEvents 1.0.2, section "Required attributes")."""
PROTOBUF = "application/x-protobuf"
"""Content type of V2's gRPC messages over HTTP, as the gateway forwards its gRPC calls."""


class WireProtocol(StrEnum):
    """KServe's inference protocols; `grpc-v2` is V2's messages, over gRPC or HTTP."""

    V1 = "v1"
    V2 = "v2"
    GRPC_V2 = "grpc-v2"


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """A decoded body: V1 instances, or a V2 request."""

    instances: Sequence[Any] = ()
    v2: V2Request | None = None
    protocol: WireProtocol = WireProtocol.V2


def decode_body(
    protocol: WireProtocol,
    body: bytes,
    header_length: str | None,
    kept: Mapping[str, Tensor] | None = None,
) -> DecodedBody:
    """Decode the body of an HTTP request; raises InvalidRequest.

    `kept`: tensors that V2 inputs refer to, by their identities.
    """
    if protocol is WireProtocol.V2:
        return DecodedBody(v2=decode_request(body, header_length, kept))
    if protocol is WireProtocol.GRPC_V2:
        return DecodedBody(v2=decode_request_message(body), protocol=protocol)
    return _decode_v1(parse_object(body))


def _decode_v1(document: dict[str, Any]) -> DecodedBody:
    for field in ("instances", "inputs"):
        if field in document:
            instances = document[field]
            if not isinstance(instances, list):
                raise InvalidRequest(f"{field!r} must be an array, was {kind_of(instances)}")
            return DecodedBody(instances, protocol=WireProtocol.V1)
    if not _EVENT_FIELDS - document.keys():
        return _decode_v1(_data_of_event(document))
    raise InvalidRequest(
        f"the body must hold an array 'instances', held {shown(sorted(document)[:5])}"
    )


def _data_of_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """The request in a CloudEvent in structured mode. Raises InvalidRequest."""
    if "data_base64" in event:
        try:
            return parse_object(base64.b64decode(event["data_base64"], validate=True))
        except (TypeError, ValueError) as error:
            raise InvalidRequest("the event's 'data_base64' must be base64") from error
    data = event.get("data")
    if isinstance(data, dict) and _EVENT_FIELDS - data.keys():
        return data
    raise InvalidRequest(f"the event's 'data' must be a request's object, was {kind_of(data)}")


def encode_body(
    body: DecodedBody, outputs: Sequence[Tensor], *, predictions: list[Any], model_name: str
) -> EncodedBody:
    """The response in the protocol of the request; raises InvalidRequest."""
    if body.v2 is None:
        content = orjson.dumps({"predictions": predictions})
        return EncodedBody(content, (("content-type", "application/json"),))
    if body.protocol is WireProtocol.GRPC_V2:
        content = encode_message(outputs, model_name=model_name, request=body.v2)
        return EncodedBody(content, (("content-type", PROTOBUF),))
    return encode_response(outputs, model_name=model_name, request=body.v2)
