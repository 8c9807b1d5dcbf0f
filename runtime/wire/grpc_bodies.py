"""The Open Inference Protocol over gRPC: KServe's messages to tensors and back.

Raw contents stay buffers. An answer is raw where the request was, or where a datatype has no
other form.
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
    ONLY_RAW,
    Description,
    Tensor,
    check_names_differ,
    described,
)
from runtime.wire.v2 import RequestedOutput, V2Request, chosen_outputs

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


def parse(kind: Any, content: bytes) -> Any:
    """A message of `kind`; raises InvalidRequest."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InvalidRequest(f"the message is no {kind.DESCRIPTOR.name}: {error}") from error


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
        _tensor(entry, raw[index] if raw else None, f"inputs[{index}]")
        for index, entry in enumerate(message.inputs)
    )
    check_names_differ([tensor.name for tensor in inputs], "'inputs'")
    check_names_differ([entry.name for entry in message.outputs], "'outputs'")
    return V2Request(
        inputs=inputs,
        id=message.id or None,
        is_binary=bool(raw),
        outputs=tuple(RequestedOutput(entry.name, bool(raw)) for entry in message.outputs),
    )


def _tensor(entry: Any, raw: bytes | None, place: str) -> Tensor:
    about = described(entry.name, entry.datatype, list(entry.shape), place)
    if raw is None:
        return _from_contents(entry.contents, about)
    if entry.HasField("contents"):
        raise InvalidRequest(f"{place}: 'contents' and raw_input_contents exclude each other")
    return from_raw(memoryview(raw), about)


def _from_contents(contents: Any, about: Description) -> Tensor:
    if about.datatype in ONLY_RAW:
        raise InvalidRequest(
            f"{about.place}: {about.datatype} can only be sent in raw_input_contents"
        )
    field = CONTENTS_OF[about.datatype]
    values = getattr(contents, field)
    if len(values) != about.count:
        raise InvalidRequest(
            f"{about.place}: shape {list(about.shape)} needs {about.count} elements in {field},"
            f" has {len(values)}"
        )
    if about.datatype == BYTES:
        return Tensor(about.name, BYTES, string_array(list(values), about))
    try:
        array = np.fromiter(values, NUMPY_OF[about.datatype], len(values))
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{about.place}: {field} does not fit {about.datatype}: {error}"
        ) from error
    return Tensor(about.name, about.datatype, array.reshape(about.shape))


def encode_answer(tensors: Sequence[Tensor], *, model_name: str, request: V2Request) -> bytes:
    """A `ModelInferResponse` on the wire; raises InvalidRequest."""
    chosen = [tensor for tensor, _ in chosen_outputs(tensors, request)]
    is_raw = request.is_binary or any(tensor.datatype in ONLY_RAW for tensor in chosen)
    answer = messages.ModelInferResponse(model_name=model_name, id=request.id or "")
    for tensor in chosen:
        entry = answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if is_raw:
            answer.raw_output_contents.append(to_raw(tensor))
        else:
            getattr(entry.contents, CONTENTS_OF[tensor.datatype]).extend(
                tensor.data.ravel().tolist()
            )
    content: bytes = answer.SerializeToString()
    return content
