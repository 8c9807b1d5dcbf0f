"""What an ONNX file says of itself: inputs, outputs, and where its tensors lie (onnx.proto)."""

from __future__ import annotations

import mmap
import re
from pathlib import Path, PurePosixPath
from typing import Final

from runtime.engines.libraries.protobuf import fields, message, text
from runtime.engines.programs.signature import ANY, Port, Signature, Size
from runtime.errors import ModelInvalid

DATATYPES: Final = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
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
    "ConvTranspose",
    "DynamicQuantizeLSTM",
    "GRU",
    "LSTM",
    "RNN",
    "STFT",
    "Unique",
)
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
    datatype = DATATYPES.get(element) if isinstance(element, int) else None
    if datatype is None:
        raise ModelInvalid(
            f"tensor {name!r} has an unsupported type;"
            f" supported are {', '.join(DATATYPES.values())}"
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
