"""The Open Inference Protocol (V2) over REST: bodies to tensors and back, JSON and binary.

KServe's own codec turns binary tensors into Python lists; this one leaves them as buffers.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from runtime.errors import InvalidRequest
from runtime.tensors import BYTES, NUMPY_OF, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH_HEADER = "inference-header-content-length"
BINARY_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class V2Request:
    """A decoded request."""

    inputs: tuple[Tensor, ...]
    id: str | None = None
    binary_outputs: frozenset[str] | None = frozenset()
    """Names of outputs wanted in binary; None: all of them."""


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A body and the headers that say how to read it."""

    content: bytes
    headers: tuple[tuple[str, str], ...]


def decode_request(body: bytes, header_length: str | None) -> V2Request:
    """The tensors of a request; raises InvalidRequest."""
    document, tail = _split(body, header_length)
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise InvalidRequest("the body must hold a list 'inputs' with one tensor or more")
    identity = document.get("id")
    if identity is not None and not isinstance(identity, str):
        raise InvalidRequest(f"'id' must be a string, was {type(identity).__name__}")
    return V2Request(_tensors(inputs, tail, "inputs"), identity, _binary_outputs(document))


def decode_outputs(body: bytes, header_length: str | None) -> tuple[Tensor, ...]:
    """The tensors of another pod's answer; raises InvalidRequest."""
    document, tail = _split(body, header_length)
    outputs = document.get("outputs")
    if not isinstance(outputs, list):
        raise InvalidRequest("the answer must hold a list 'outputs'")
    return _tensors(outputs, tail, "outputs")


def encode_request(tensors: Sequence[Tensor]) -> EncodedBody:
    """A request whose inputs and outputs are all binary."""
    entries, buffers = _entries(tensors, None)
    return _encoded({"inputs": entries, "parameters": {"binary_data_output": True}}, buffers)


def encode_response(
    tensors: Sequence[Tensor], *, model_name: str, request: V2Request
) -> EncodedBody:
    """An answer in the form the request asked for."""
    entries, buffers = _entries(tensors, request.binary_outputs)
    document: dict[str, Any] = {"model_name": model_name, "outputs": entries}
    if request.id is not None:
        document["id"] = request.id
    return _encoded(document, buffers)


def _split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON document and the binary tail of a body."""
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or not 0 < int(header_length) <= len(body):
            raise InvalidRequest(
                f"header {LENGTH_HEADER} must be 1 to {len(body)} (the body's length),"
                f" was {header_length!r}"
            )
        length = int(header_length)
    return read_object(body[:length]), memoryview(body)[length:]


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object; raises InvalidRequest."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body must be a JSON object, was {type(document).__name__}")
    return document


def _tensors(entries: list[Any], tail: memoryview, where: str) -> tuple[Tensor, ...]:
    tensors = []
    for index, entry in enumerate(entries):
        place = f"{where}[{index}]"
        name, datatype, shape = _described(entry, place)
        size = (entry.get("parameters") or {}).get("binary_data_size")
        if size is None:
            data = _from_json(entry.get("data"), datatype, shape, place)
        else:
            if type(size) is not int or not 0 <= size <= len(tail):
                raise InvalidRequest(
                    f"{place}: binary_data_size must be at most the {len(tail)} bytes that are"
                    f" left, was {size!r}"
                )
            data = _from_binary(tail[:size], datatype, shape, place)
            tail = tail[size:]
        tensors.append(Tensor(name, datatype, data))
    if len(tail):
        raise InvalidRequest(f"{len(tail)} bytes are left after the last binary tensor")
    return tuple(tensors)


def _described(entry: Any, place: str) -> tuple[str, str, tuple[int, ...]]:
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{place} must be an object, was {type(entry).__name__}")
    name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{place}: 'name' must be a string, was {name!r}")
    if not isinstance(datatype, str) or (datatype not in NUMPY_OF and datatype != BYTES):
        allowed = ", ".join([*NUMPY_OF, BYTES])
        raise InvalidRequest(f"{place}: 'datatype' must be one of {allowed}, was {datatype!r}")
    is_shape = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**31 for n in shape)
    if not is_shape or not isinstance(shape, list):
        raise InvalidRequest(f"{place}: 'shape' must be a list of sizes, was {shape!r}")
    if not isinstance(entry.get("parameters") or {}, dict):
        raise InvalidRequest(f"{place}: 'parameters' must be an object")
    return name, datatype, tuple(shape)


def _from_json(data: Any, datatype: str, shape: tuple[int, ...], place: str) -> npt.NDArray[Any]:
    if not isinstance(data, list):
        raise InvalidRequest(f"{place}: 'data' must be a list, was {type(data).__name__}")
    if datatype == "FP16":
        raise InvalidRequest(f"{place}: FP16 can only be sent in binary")
    flat = _flattened(data)
    if len(flat) != math.prod(shape):
        raise InvalidRequest(
            f"{place}: shape {list(shape)} needs {math.prod(shape)} elements, data has {len(flat)}"
        )
    if datatype == BYTES:
        if not all(isinstance(value, str) for value in flat):
            raise InvalidRequest(f"{place}: data of datatype BYTES must be strings")
        array = np.empty(len(flat), dtype=object)
        array[:] = [value.encode() for value in flat]
        return array.reshape(shape)
    dtype = NUMPY_OF[datatype]
    kinds: tuple[type, ...] = {"b": (bool,), "f": (int, float)}.get(dtype.kind, (int,))
    if not all(isinstance(v, kinds) and (dtype.kind == "b") == isinstance(v, bool) for v in flat):
        raise InvalidRequest(f"{place}: data must be values of datatype {datatype}")
    try:
        return np.array(flat, dtype=dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{place}: data does not fit {datatype}: {error}") from error


def _flattened(data: list[Any]) -> list[Any]:
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise InvalidRequest("data mixes lists and values at one depth")
        data = [value for row in data for value in row]
    return data


def _from_binary(
    buffer: memoryview, datatype: str, shape: tuple[int, ...], place: str
) -> npt.NDArray[Any]:
    count = math.prod(shape)
    if datatype == BYTES:
        values = _strings(buffer, place)
        if len(values) != count:
            raise InvalidRequest(
                f"{place}: shape {list(shape)} needs {count} strings, got {len(values)}"
            )
        array = np.empty(count, dtype=object)
        array[:] = values
        return array.reshape(shape)
    dtype = NUMPY_OF[datatype]
    if len(buffer) != count * dtype.itemsize:
        raise InvalidRequest(
            f"{place}: shape {list(shape)} of {datatype} needs {count * dtype.itemsize} bytes,"
            f" got {len(buffer)}"
        )
    return np.frombuffer(buffer, dtype=dtype).reshape(shape)


def _strings(buffer: memoryview, place: str) -> list[bytes]:
    """BYTES elements: a length of four bytes, little-endian, before each."""
    values, position = [], 0
    while position < len(buffer):
        if position + 4 > len(buffer):
            raise InvalidRequest(f"{place}: BYTES data ends inside a length")
        (length,) = struct.unpack_from("<I", buffer, position)
        position += 4
        if position + length > len(buffer):
            raise InvalidRequest(f"{place}: BYTES data ends inside a string of {length} bytes")
        values.append(bytes(buffer[position : position + length]))
        position += length
    return values


def _binary_outputs(document: dict[str, Any]) -> frozenset[str] | None:
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' must be an object")
    if parameters.get("binary_data_output"):
        return None
    outputs = document.get("outputs") or []
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise InvalidRequest("'outputs' must be a list of objects")
    return frozenset(
        str(each.get("name"))
        for each in outputs
        if isinstance(each.get("parameters"), dict) and each["parameters"].get("binary_data")
    )


def _entries(
    tensors: Sequence[Tensor], binary: frozenset[str] | None
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """JSON entries of tensors, and the buffers of those that go in binary (all, if None)."""
    entries, buffers = [], []
    for tensor in tensors:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "datatype": tensor.datatype,
        }
        if binary is None or tensor.name in binary:
            buffer = _to_binary(tensor)
            entry["parameters"] = {"binary_data_size": len(buffer)}
            buffers.append(buffer)
        elif tensor.datatype == BYTES:
            entry["data"] = [value.decode("utf-8", "replace") for value in tensor.data.ravel()]
        else:
            entry["data"] = tensor.data.ravel().tolist()
        entries.append(entry)
    return entries, buffers


def _to_binary(tensor: Tensor) -> bytes:
    if tensor.datatype != BYTES:
        return np.ascontiguousarray(tensor.data).tobytes()
    return b"".join(struct.pack("<I", len(value)) + value for value in tensor.data.ravel())


def _encoded(document: dict[str, Any], buffers: list[bytes]) -> EncodedBody:
    text = orjson.dumps(document)
    if not buffers:
        return EncodedBody(text, (("content-type", "application/json"),))
    headers = (("content-type", BINARY_TYPE), (LENGTH_HEADER, str(len(text))))
    return EncodedBody(b"".join([text, *buffers]), headers)
