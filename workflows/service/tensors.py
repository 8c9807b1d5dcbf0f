"""Tensors of the Open Inference Protocol as bytes, and the plain values that workflows see.

A value is one row: its tensor gets a first dimension of 1, and loses it again when it is fetched.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from common.shown_value import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BYTES: Final = "BYTES"
_LENGTH: Final = struct.Struct("<I")
_DTYPES: Final[Mapping[str, str]] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1",
    "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
HEADER_LENGTH: Final = "inference-header-content-length"


class BadTensorError(ValueError):
    """A value that is no input, or a response that is no V2 response; says why."""


@dataclass(frozen=True, slots=True)
class KeptAt:
    """A tensor that the pod which computed it keeps until the run ends."""

    identity: str
    address: str
    """`host:port` of the pod."""
    size_bytes: int

    def as_parameters(self) -> dict[str, Any]:
        return {"kept_tensor": self.identity, "kept_at": self.address}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a pod sent it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes
    kept: KeptAt | None = None
    """A pod that has it; `raw` is empty until the data is fetched."""

    @property
    def size_bytes(self) -> int:
        return len(self.raw) if self.kept is None else self.kept.size_bytes

    @property
    def is_elsewhere(self) -> bool:
        """Whether only a pod has the data."""
        return self.kept is not None and not self.raw


def tensor_of(name: str, argument: Mapping[str, Any]) -> StoredTensor:
    """The input `name` of a written argument that is no reference. Raises BadTensorError."""
    match argument:
        case {"base64": str(text)}:
            try:
                content = base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise BadTensorError(f"input {name!r} is no base64: {error}") from error
            return StoredTensor(name, BYTES, (1,), _packed_items([content]))
        case {"tensor": {"datatype": str(datatype), "shape": list(shape), "data": list(data)}}:
            return _typed(name, datatype, tuple(shape), data)
        case {"value": value}:
            return _of_value(name, value)
    raise BadTensorError(f"input {name!r} is neither a value nor a tensor")


def text_tensor(name: str, text: str) -> StoredTensor:
    """A tensor of one text."""
    return StoredTensor(name, BYTES, (1,), _packed_items([text.encode()]))


def _of_value(name: str, value: Any) -> StoredTensor:
    if isinstance(value, str):
        return text_tensor(name, value)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        items = _packed_items([each.encode() for each in value])
        return StoredTensor(name, BYTES, (len(value),), items)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BadTensorError(f"input {name!r} has rows of different lengths") from error
    kinds = {"b": "BOOL", "i": "INT64", "u": "INT64", "f": "FP32"}
    datatype = kinds.get(array.dtype.kind)
    if datatype is None or array.size == 0:
        raise BadTensorError(
            f"input {name!r} must be a text, a number or lists of numbers, was {shown(value)}"
        )
    data = array.astype(_DTYPES[datatype]).tobytes()
    return StoredTensor(name, datatype, (1, *array.shape), data)


def _typed(name: str, datatype: str, shape: tuple[int, ...], data: Sequence[Any]) -> StoredTensor:
    if datatype == BYTES:
        return StoredTensor(name, BYTES, shape, _packed_items([str(x).encode() for x in data]))
    if datatype not in _DTYPES:
        raise BadTensorError(
            f"input {name!r} has datatype {datatype!r}; there are {', '.join(_DTYPES)}, {BYTES}"
        )
    try:
        return StoredTensor(name, datatype, shape, np.asarray(data, _DTYPES[datatype]).tobytes())
    except (ValueError, TypeError, OverflowError) as error:
        raise BadTensorError(
            f"input {name!r} must be {datatype}, was {shown(list(data))}"
        ) from error


def _packed_items(items: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)


def _items_of(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        (size,) = _LENGTH.unpack_from(raw, at)
        yield raw[at + 4 : at + 4 + size]
        at += 4 + size


def plain_value(tensor: StoredTensor) -> Any:
    """The tensor as JSON, without a first dimension of 1."""
    values: Any
    if tensor.datatype == BYTES:
        values = [_text(item) for item in _items_of(tensor.raw)]
        nested = np.empty(len(values), dtype=object)
        nested[:] = values
        values = nested.reshape(tensor.shape).tolist()
    elif tensor.datatype in _DTYPES:
        array = np.frombuffer(tensor.raw, _DTYPES[tensor.datatype]).reshape(tensor.shape)
        values = array.tolist()
    else:
        raise BadTensorError(f"output {tensor.name!r} of type {tensor.datatype} has no JSON")
    return values[0] if tensor.shape and tensor.shape[0] == 1 else values


def _text(item: bytes) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return base64.b64encode(item).decode()


def single_item(tensor: StoredTensor) -> bytes:
    """The text or bytes of a tensor that holds one. Raises BadTensorError."""
    items = list(_items_of(tensor.raw)) if tensor.datatype == BYTES else []
    if len(items) != 1:
        raise BadTensorError(f"{tensor.name!r} must be one text, has shape {list(tensor.shape)}")
    return items[0]


def body_outputs(status: int, body: bytes) -> dict[str, StoredTensor]:
    """The outputs of a graph's step: an HTTP status and a body."""
    number = np.asarray([status], _DTYPES["INT64"]).tobytes()
    return {
        "status": StoredTensor("status", "INT64", (1,), number),
        "body": StoredTensor("body", BYTES, (1,), _packed_items([body])),
    }


def is_v2_body(body: bytes) -> bool:
    """Whether a JSON body is a request of the Open Inference Protocol."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and "inputs" in document and "instances" not in document


def infer_body(tensors: Sequence[StoredTensor]) -> tuple[bytes, int]:
    """Body of a V2 request with binary tensors, and the length of its JSON part."""
    head = orjson.dumps(
        {
            "inputs": [
                {
                    "name": tensor.name,
                    "datatype": tensor.datatype,
                    "shape": tensor.shape,
                    "parameters": (
                        {"binary_data_size": len(tensor.raw)}
                        if tensor.kept is None
                        else tensor.kept.as_parameters()
                    ),
                }
                for tensor in tensors
            ],
            "parameters": {"binary_data_output": True},
        }
    )
    return b"".join((head, *(tensor.raw for tensor in tensors))), len(head)


def read_outputs(body: bytes, header_length: int | None) -> dict[str, StoredTensor]:
    """Outputs of a V2 response, by name. Raises BadTensorError."""
    size = len(body) if header_length is None else header_length
    try:
        outputs = orjson.loads(body[:size])["outputs"]
        at, found = size, {}
        for each in outputs:
            parameters = each.get("parameters") or {}
            length = parameters.get("binary_data_size")
            name, datatype, shape = each["name"], each["datatype"], tuple(each["shape"])
            if "kept_tensor" in parameters:
                kept = KeptAt(
                    str(parameters["kept_tensor"]), str(parameters["kept_at"]),
                    int(parameters["kept_bytes"]),
                )  # fmt: skip
                found[name] = StoredTensor(name, datatype, shape, b"", kept)
                continue
            if length is None:
                found[name] = _typed(name, datatype, shape, _flat(each["data"]))
                continue
            found[name] = StoredTensor(name, datatype, shape, body[at : at + length])
            at += length
    except (ValueError, KeyError, TypeError) as error:
        raise BadTensorError(f"the pod's response is no V2 response: {error!r}") from error
    return found


def outputs_bytes(outputs: Mapping[str, StoredTensor]) -> int:
    """Size of a step's outputs, wherever they are."""
    return sum(each.size_bytes for each in outputs.values())


def _flat(data: Any) -> list[Any]:
    if isinstance(data, list) and data and isinstance(data[0], list):
        return [value for row in data for value in _flat(row)]
    return list(data)
