"""What an ONNX file says of itself (onnx.proto), read field by field, without a schema."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from common.inference_protocol.tensors import BYTES, NUMBER_TYPES
from runtime.engines.program import ANY, Port, Signature, Size
from runtime.errors import ModelInvalid

_FIXED64, _SIZED, _FIXED32 = 1, 2, 5
_SHORT_STRING: Final = 32
"""Bytes of names of nodes and classes are fewer."""
_MAX_VARINT_BYTES: Final = 10


def runs_of(*, floats: int, integers: int, strings: int) -> re.Pattern[bytes]:
    """Matches entries of three repeated fields, the strings short ones, for `fields` to pass over.

    The fields have numbers below 16, which take one byte with their type.
    """
    fixed = _tag(floats, _FIXED32) + b".{4}"
    number = _tag(integers, 0) + b"[\\x80-\\xff]{0,%d}+[\\x00-\\x7f]" % (_MAX_VARINT_BYTES - 1)
    sized = (re.escape(bytes([size])) + b".{%d}" % size for size in range(_SHORT_STRING))
    text = _tag(strings, _SIZED) + b"(?:%b)" % b"|".join(sized)
    return re.compile(b"(?:%b)++|(?:%b)++|(?:%b)++" % (fixed, number, text), re.DOTALL)


def _tag(number: int, kind: int) -> bytes:
    return re.escape(bytes([number << 3 | kind]))


def fields(
    message: memoryview, passed_over: re.Pattern[bytes] | None = None
) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: an int, or the bytes of a string or message.

    `passed_over`: what `runs_of` gave: millions of entries take a few hundred milliseconds. Raises
    ModelInvalid if the message is cut short or no protobuf.
    """
    for number, value, _, _ in entries(message, passed_over):
        yield number, value


def entries(
    message: memoryview, passed_over: re.Pattern[bytes] | None = None
) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """As `fields`, each with the place of its first byte in the message and of the one behind."""
    at, end = 0, len(message)
    while at < end:
        begin = at
        if passed_over is not None and (run := passed_over.match(message, at)) is not None:
            at = run.end()
            continue
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        match kind:
            case 0:
                value, at = _varint(message, at)
                yield number, value, begin, at
                continue
            case 2:
                size, at = _varint(message, at)
            case 1 | 5:
                size = 8 if kind == _FIXED64 else 4
            case _:
                raise ModelInvalid(f"the file is no protobuf: field {number} has type {kind}")
        if at + size > end:
            raise ModelInvalid(f"the file is cut short: field {number} needs {size} bytes")
        yield number, message[at : at + size], begin, at + size
        at += size


def encoded(number: int, content: bytes) -> bytes:
    """A string or message as the field of a message."""
    return _encoded_varint(number << 3 | _SIZED) + _encoded_varint(len(content)) + content


def _encoded_varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: int | memoryview) -> str:
    """A string field; raises ModelInvalid."""
    if isinstance(value, int):
        raise ModelInvalid("the file is no model: a number where a text should be")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"the file holds a text that is not UTF-8: {error}") from error


def message(value: int | memoryview) -> memoryview:
    """A message field; raises ModelInvalid."""
    if isinstance(value, int):
        raise ModelInvalid("the file is no model: a number where a message should be")
    return value


def varints(value: int | memoryview) -> list[int]:
    """The numbers of a repeated field's entry: one, or many that are packed; raises ModelInvalid.

    Negative numbers are those of 64 bits without a sign.
    """
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(data):
            raise ModelInvalid("the file is cut short within a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ModelInvalid("the file is no protobuf: a number has more than 10 bytes")


_TEXTS: Final = 8
_DATATYPE_OF_CODE: Final = {each.onnx: each.datatype for each in NUMBER_TYPES if each.onnx} | {
    _TEXTS: BYTES
}
"""The protocol's datatypes by the codes of `TensorProto.DataType`."""
ROWS: Final = "rows"
"""The name given to a leading size that all tensors share."""
# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_VALUE_NAME, _VALUE_TYPE, _TYPE_TENSOR = 1, 2, 1
_TENSOR_ELEMENT, _TENSOR_SHAPE, _SHAPE_DIM = 1, 2, 1
_DIM_VALUE, _DIM_PARAM = 1, 2
_INITIALIZER_NAME, _INITIALIZER_EXTERNAL = 8, 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_ENDED_BY_EMPTY: Final = (
    "ConvTranspose", "DynamicQuantizeLSTM", "GRU", "LSTM", "RNN", "STFT", "Unique",
)  # fmt: skip
"""Operators of onnxruntime that end the process, not the inference, for a tensor with a size of 0
(onnxruntime 1.32, each of ONNX's own node tests with each size of its inputs set to 0)."""
_OPERATOR_ENDED_BY_EMPTY: Final = re.compile(
    b"|".join(re.escape(bytes([0x22, len(name)]) + name.encode()) for name in _ENDED_BY_EMPTY)
)
"""As field `op_type` of a node, also of a node in another one's graph."""


def onnx_signature(path: Path) -> Signature:
    """Inputs and outputs of the model; raises ModelInvalid."""
    with path.open("rb") as file:
        return _signature(memoryview(_mapped(file.fileno())))


def _mapped(descriptor: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise ModelInvalid("the file is empty") from error


def _signature(content: memoryview) -> Signature:
    parts = list(fields(content))
    graph = next((value for number, value in parts if number == _MODEL_GRAPH), None)
    if graph is None:
        raise ModelInvalid("the file holds no graph of ONNX")
    weights: set[str] = set()
    inputs: list[Port] = []
    outputs: list[Port] = []
    nodes = [message(value) for number, value in parts if number == _MODEL_FUNCTION]
    for number, value in fields(message(graph)):
        if number == _GRAPH_NODE:
            nodes.append(message(value))
        elif number == _GRAPH_INITIALIZER:
            weights.add(_initializer(message(value)))
        elif number == _GRAPH_INPUT:
            inputs.append(_port(message(value), is_input=True))
        elif number == _GRAPH_OUTPUT:
            outputs.append(_port(message(value), is_input=False))
    own = [port for port in inputs if port.name not in weights]
    if not own or not outputs:
        raise ModelInvalid("the model must have an input and an output")
    ports = _with_common_rows([*own, *outputs], len(own))
    ends_process = any(_OPERATOR_ENDED_BY_EMPTY.search(node) for node in nodes)
    return Signature(
        tuple(ports[: len(own)]), tuple(ports[len(own) :]), {}, {}, least_size=int(ends_process)
    )


def _initializer(tensor: memoryview) -> str:
    """The name of a stored tensor, whose external file must lie in the model's folder."""
    name = ""
    for number, value in fields(tensor):
        if number == _INITIALIZER_NAME:
            name = text(value)
        elif number == _INITIALIZER_EXTERNAL:
            entry = dict(fields(message(value)))
            if _ENTRY_KEY in entry and text(entry[_ENTRY_KEY]) == "location":
                check_location(text(entry.get(_ENTRY_VALUE, memoryview(b""))))
    return name


def check_location(location: str) -> None:
    """Raise ModelInvalid if a tensor's file is not one below the model's folder."""
    path = PurePosixPath(location)
    if not location or path.is_absolute() or ".." in path.parts or "\\" in location:
        raise ModelInvalid(
            f"a tensor lies in {location!r}; its file must be in the model's own folder"
        )


def _port(value: memoryview, *, is_input: bool) -> Port:
    entry = dict(fields(value))
    name = text(entry.get(_VALUE_NAME, memoryview(b"")))
    kind = dict(fields(message(entry.get(_VALUE_TYPE, memoryview(b"")))))
    if _TYPE_TENSOR not in kind:
        raise ModelInvalid(
            f"{'input' if is_input else 'output'} {name!r} is no tensor (a sequence or map);"
            " export the model with tensors only (skl2onnx: options={'zipmap': False})"
        )
    tensor = dict(fields(message(kind[_TYPE_TENSOR])))
    element = tensor.get(_TENSOR_ELEMENT, 0)
    datatype = _DATATYPE_OF_CODE.get(element) if isinstance(element, int) else None
    if datatype is None:
        raise ModelInvalid(
            f"tensor {name!r} has an unsupported type;"
            f" supported are {', '.join(_DATATYPE_OF_CODE.values())}"
        )
    if _TENSOR_SHAPE not in tensor:
        if is_input:
            raise ModelInvalid(f"input {name!r} has no shape; export the model with one")
        return Port(name, name, datatype, (ANY,))
    dims = [dim for number, dim in fields(message(tensor[_TENSOR_SHAPE])) if number == _SHAPE_DIM]
    return Port(name, name, datatype, tuple(_size(message(dim)) for dim in dims))


def _size(dim: memoryview) -> Size:
    entry = dict(fields(dim))
    size = entry.get(_DIM_VALUE)
    if isinstance(size, int):
        return size if 0 < size < 2**40 else ANY
    return text(entry[_DIM_PARAM]) if _DIM_PARAM in entry else ANY


def _with_common_rows(ports: list[Port], inputs: int) -> list[Port]:
    """The ports, their first sizes of one name if they may be one: exporters name them freely.

    Whether they are is seen at the first inference (`TensorTask.warm_up`).
    """
    leading = [port.shape[0] if port.shape else 1 for port in ports]
    of_inputs = {size for size in leading[:inputs] if size != ANY}
    if any(isinstance(size, int) for size in leading) or len(of_inputs) > 1:
        return ports
    return [
        Port(each.name, each.graph_name, each.datatype, (ROWS, *each.shape[1:])) for each in ports
    ]
