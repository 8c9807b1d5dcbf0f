"""The Open Inference Protocol over gRPC: KServe's messages to tensors and back.

Raw contents are kept as buffers. A response is raw if its request was, or if one of its datatypes
can only be sent raw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

from runtime.errors import InvalidRequest
from runtime.wire.raw_tensors import from_raw, string_array, to_raw
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
from runtime.wire.v2 import RequestedOutput, V2Request, select_outputs

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
