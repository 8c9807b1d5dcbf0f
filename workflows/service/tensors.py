"""The values that workflows see, and tensors of the Open Inference Protocol as pods send them.

A value is one row: its tensor gets a first dimension of 1, and loses it again when it is fetched.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import orjson

from common.inference_protocol.bodies import BINARY_SIZE, EncodedBody, TensorEntry, request_body
from common.inference_protocol.bodies import read_outputs as read_entries
from common.inference_protocol.encodings import from_json, from_raw, to_raw
from common.inference_protocol.errors import InvalidRequest, PodError
from common.inference_protocol.tensors import (
    BYTES,
    NUMPY_OF,
    Tensor,
    TensorReference,
    TensorSpec,
    bytes_tensor,
    numeric_tensor,
    parse_tensor_spec,
)
from common.shown_value import shown

_DATATYPES: Final = {"b": "BOOL", "i": "INT64", "u": "INT64", "f": "FP32"}
"""Of values, by the kind of their array."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a pod sent it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes
    kept: TensorReference | None = None
    """A pod that has it; `raw` is empty until the data is fetched."""

    @property
    def size_bytes(self) -> int:
        return len(self.raw) if self.kept is None else self.kept.size_bytes

    @property
    def is_elsewhere(self) -> bool:
        """Whether only a pod has the data."""
        return self.kept is not None and not self.raw


def tensor_of(name: str, argument: Mapping[str, Any]) -> StoredTensor:
    """The input `name` of a written argument that is no reference. Raises InvalidRequest."""
    path = f"input {name!r}"
    match argument:
        case {"base64": str(text)}:
            try:
                content = base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise InvalidRequest(f"{path} is no base64: {error}") from error
            return _stored(bytes_tensor(name, [content]))
        case {"tensor": {"datatype": str(datatype), "shape": list(shape), "data": list(data)}}:
            spec = replace(parse_tensor_spec(path, datatype, shape, path), name=name)
            return _stored(from_json(data, spec))
        case {"value": value}:
            return _of_value(name, value)
    raise InvalidRequest(f"{path} is neither a value nor a tensor")


def text_tensor(name: str, text: str) -> StoredTensor:
    """A tensor of one text."""
    return _stored(bytes_tensor(name, [text.encode()]))


def _stored(tensor: Tensor) -> StoredTensor:
    return StoredTensor(tensor.name, tensor.datatype, tensor.shape, to_raw(tensor))


def _loaded(tensor: StoredTensor) -> Tensor:
    path = f"output {tensor.name!r}"
    spec = TensorSpec(tensor.name, tensor.datatype, tensor.shape, path)
    return from_raw(memoryview(tensor.raw), spec)


def _of_value(name: str, value: Any) -> StoredTensor:
    if isinstance(value, str):
        return text_tensor(name, value)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return _stored(bytes_tensor(name, [each.encode() for each in value]))
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidRequest(f"input {name!r} has rows of different lengths") from error
    datatype = _DATATYPES.get(array.dtype.kind)
    if datatype is None or array.size == 0:
        raise InvalidRequest(
            f"input {name!r} must be a text, a number or lists of numbers, was {shown(value)}"
        )
    return _stored(Tensor(name, datatype, array.astype(NUMPY_OF[datatype])[np.newaxis]))


def plain_value(tensor: StoredTensor) -> Any:
    """The tensor as JSON, without a first dimension of 1. Raises InvalidRequest."""
    data = _loaded(tensor).data
    if tensor.datatype == BYTES:
        data = np.vectorize(_text, otypes=[object])(data) if data.size else data
    values = data.tolist()
    return values[0] if tensor.shape and tensor.shape[0] == 1 else values


def _text(item: bytes) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return base64.b64encode(item).decode()


def single_item(tensor: StoredTensor) -> bytes:
    """The text or bytes of a tensor that holds one. Raises InvalidRequest."""
    items = _loaded(tensor).data.ravel().tolist() if tensor.datatype == BYTES else []
    if len(items) != 1:
        raise InvalidRequest(f"{tensor.name!r} must be one text, has shape {list(tensor.shape)}")
    return bytes(items[0])


def body_outputs(status: int, body: bytes) -> dict[str, StoredTensor]:
    """The outputs of a graph's step: an HTTP status and a body."""
    return {
        "status": _stored(numeric_tensor("status", np.array([status], np.int64))),
        "body": _stored(bytes_tensor("body", [body])),
    }


def is_v2_body(body: bytes) -> bool:
    """Whether a JSON body is a request of the Open Inference Protocol."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and "inputs" in document and "instances" not in document


def infer_body(tensors: Sequence[StoredTensor]) -> EncodedBody:
    """A V2 request with binary tensors, and references to those that pods keep."""
    entries = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": (
                {BINARY_SIZE: len(tensor.raw)}
                if tensor.kept is None
                else tensor.kept.as_parameters()
            ),
        }
        for tensor in tensors
    ]
    return request_body(entries, [tensor.raw for tensor in tensors if tensor.kept is None])


def read_outputs(body: bytes, header_length: str | None) -> dict[str, StoredTensor]:
    """Outputs of a V2 response, by name. Raises InvalidRequest."""
    try:
        return {each.spec.name: _output(each) for each in read_entries(body, header_length)}
    except PodError as error:
        raise InvalidRequest(f"the pod's response is no V2 response: {error}") from error


def _output(entry: TensorEntry) -> StoredTensor:
    spec = entry.spec
    if entry.reference is None and entry.raw is None:
        return _stored(from_json(entry.data, spec))
    raw = b"" if entry.raw is None else bytes(entry.raw)
    return StoredTensor(spec.name, spec.datatype, spec.shape, raw, entry.reference)


def outputs_bytes(outputs: Mapping[str, StoredTensor]) -> int:
    """Size of a step's outputs, wherever they are."""
    return sum(each.size_bytes for each in outputs.values())
