"""The engine of ONNX models (`onnxruntime`).

`StringNormalizer` takes the locale `en_US.UTF-8` unless the file names another one, and onnxruntime
cannot load the model where it is not installed, such as in slim images. glibc's own `C.UTF-8` is
always there, and has the same lower and upper case of each character as any locale of English: the
model is loaded with that one in its place.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

import numpy.typing as npt
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import BYTES, NUMBER_TYPES
from runtime.engines.engine import ModelFolder
from runtime.engines.libraries.library import LibraryEngine
from runtime.engines.libraries.onnx_file import (
    INLINED_NODES,
    encoded,
    entries,
    fields,
    folding_limit,
    load_allowance,
    message,
    text,
)
from runtime.engines.libraries.rows import import_library, one_line
from runtime.engines.program import ANY, Port, Signature, Size
from runtime.errors import InferenceTooLarge, ModelInvalid

CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
FATAL_ONLY = 4
"""Its errors are raised as well."""
AS_REQUESTED = 1
"""Of the arena's strategies to grow: no more than is asked for."""
_REGISTRATION = Lock()
OUT_OF_BUDGET = re.compile(r"Available memory of \d+ is smaller than requested bytes of (\d+)")
"""What onnxruntime's arena says at its limit (core/framework/bfc_arena.cc)."""
RUNNING = re.compile(r"while running (\w+) node\. Name:'([^']*)'")
MISSING: Final = re.compile(r"Failed to construct locale with name:(\S*?):locale::facet")
"""What onnxruntime says (core/providers/cpu/text/string_normalizer.cc)."""
REPLACED: Final = "en_US.UTF-8"
_REPLACEMENT: Final = "C.UTF-8"
_OPERATOR: Final = "StringNormalizer"
_LOCALE: Final = "locale"
# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE, _FUNCTION_NODE = 1, 7
_NODE_OPERATOR, _NODE_ATTRIBUTE = 4, 5
_NAME, _STRING, _GRAPH, _GRAPHS, _TYPE = 1, 4, 6, 11, 20
_IS_STRING: Final = 3
_ATTRIBUTE: Final = (
    encoded(_NAME, _LOCALE.encode())
    + encoded(_STRING, _REPLACEMENT.encode())
    + bytes([_TYPE << 3 & 0x7F | 0x80, _TYPE >> 4, _IS_STRING])
)


def onnx_engine(path: Path) -> LibraryEngine:
    load = partial(_load, path)
    return LibraryEngine("onnx", path, load, fixed_bytes=512 * 1024, memory_ratio=1.5)


def _load(
    path: Path, content: memoryview, model: ModelFolder, device: torch.device, threads: int
) -> OnnxModel:
    """From the file: a graph of bytes alone may read files of the pod's working directory.

    onnxruntime refuses tensors, also of inner graphs, in files outside the model's folder.
    """
    allowance = load_allowance(sum(tensor.size_bytes for tensor in model.tensors))
    folded_bytes = folding_limit(content, allowance)
    onnxruntime = import_library("onnxruntime", "onnx")
    with _REGISTRATION:  # of the cached call: two would make two arenas
        bound_inferences(model.pod_bytes // 2)
    options = session_options(onnxruntime, threads)
    for limit, value in (
        ("optimization.constant_folding_max_output_size_in_bytes", folded_bytes),
        ("session.function_expansion_node_limit", INLINED_NODES),
        ("session.function_expansion_byte_limit", allowance),
    ):
        options.add_session_config_entry(limit, str(value))
    providers = [CPU_PROVIDER]
    if device.type == "cuda" and CUDA_PROVIDER in onnxruntime.get_available_providers():
        providers.insert(0, CUDA_PROVIDER)
    read = partial(onnxruntime.InferenceSession, sess_options=options, providers=providers)
    try:
        session = read(str(path))
    except Exception as error:  # onnxruntime's errors have no common class
        missing = MISSING.search(str(error))
        if missing is None:
            raise
        session = _read_with_replaced_locale(read, content, missing[1])
    return OnnxModel(session, onnxruntime.RunOptions())


def _read_with_replaced_locale(read: Callable[[str], Any], content: memoryview, locale: str) -> Any:
    """From a folder of its own, so that no tensor in another file is read."""
    if locale != REPLACED:
        raise locale_missing(locale)
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(with_replaced_locale(content))
        try:
            return read(str(path))
        except Exception as error:  # as above
            raise locale_missing(locale) from error


@cache
def bound_inferences(limit_bytes: int) -> None:
    """One arena for the inferences of all sessions of the process, without their weights.

    What an inference took goes back to the system at its end (`OnnxModel`).
    """
    onnxruntime = import_library("onnxruntime", "onnx")
    kind = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    arena = onnxruntime.OrtArenaCfg({"max_mem": limit_bytes, "arena_extend_strategy": AS_REQUESTED})
    onnxruntime.create_and_register_allocator(kind, arena)


def session_options(onnxruntime: Any, threads: int) -> Any:
    """No spinning threads, and the arena of `bound_inferences`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = FATAL_ONLY
    for name in ("session.use_env_allocators", "session.use_device_allocator_for_initializers"):
        options.add_session_config_entry(name, "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class OnnxModel:
    """A session; its inputs and outputs by name."""

    def __init__(self, session: Any, run_options: Any) -> None:
        self.are_rows_independent = False
        """Whether a check found that rows do not affect each other, so requests can be batched."""
        self._session = session
        run_options.log_severity_level = FATAL_ONLY
        run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._run_options = run_options

    def __call__(
        self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]
    ) -> list[npt.NDArray[Any]]:
        """The outputs of these names; raises InvalidRequest."""
        try:
            found: list[npt.NDArray[Any]] = self._session.run(
                list(outputs), dict(inputs), self._run_options
            )
        except Exception as error:  # onnxruntime's errors have no common class
            if (found_limit := OUT_OF_BUDGET.search(str(error))) is not None:
                raise InferenceTooLarge(_too_large(str(error), found_limit[1])) from None
            raise InvalidRequest(f"the model refused these tensors: {one_line(error)}") from None
        return found


def _too_large(error: str, requested: str) -> str:
    nodes = RUNNING.findall(error)
    operator, name = nodes[-1] if nodes else ("", "")
    return (
        f"node {name!r} ({operator}) asks for {requested} bytes, more than is left of the memory"
        " that one inference may take: half of the pod's budget (--memory-bytes)"
    )


def with_replaced_locale(content: memoryview) -> bytes:
    """The same model, its texts in `C.UTF-8` where they were in `en_US.UTF-8`."""
    return _rewritten(content, {_MODEL_GRAPH: _graph, _MODEL_FUNCTION: _function})


def locale_missing(name: str) -> ModelInvalid:
    """For a locale that has no replacement here."""
    return ModelInvalid(
        f"the model changes the case of texts by the locale {name!r}, which this machine lacks;"
        f" whoever runs the pod installs it (Debian: the package locales, then `localedef -i"
        f" {name.partition('.')[0]} -f UTF-8 {name}`), or export the model with the locale"
        f" {REPLACED}"
    )


def _graph(content: memoryview) -> bytes:
    return _rewritten(content, {_GRAPH_NODE: _node})


def _function(content: memoryview) -> bytes:
    return _rewritten(content, {_FUNCTION_NODE: _node})


def _attribute(content: memoryview) -> bytes:
    return _rewritten(content, {_GRAPH: _graph, _GRAPHS: _graph})


def _node(content: memoryview) -> bytes:
    found = dict(fields(content))
    if text(found.get(_NODE_OPERATOR, memoryview(b""))) != _OPERATOR:
        return _rewritten(content, {_NODE_ATTRIBUTE: _attribute})
    kept = bytearray()
    for number, value, begin, end in entries(content):
        if number == _NODE_ATTRIBUTE:
            attribute = dict(fields(message(value)))
            if text(attribute.get(_NAME, memoryview(b""))) == _LOCALE:
                if text(attribute.get(_STRING, memoryview(b""))) != REPLACED:
                    return bytes(content)
                continue
        kept += content[begin:end]
    return bytes(kept) + encoded(_NODE_ATTRIBUTE, _ATTRIBUTE)


def _rewritten(content: memoryview, rewrites: dict[int, Callable[[memoryview], bytes]]) -> bytes:
    """The message, each field of these numbers as its function writes it."""
    written = bytearray()
    for number, value, begin, end in entries(content):
        rewrite = rewrites.get(number)
        if rewrite is not None and re.search(_OPERATOR.encode(), message(value)):
            written += encoded(number, rewrite(message(value)))
        else:
            written += content[begin:end]
    return bytes(written)


_TEXTS: Final = 8
_DATATYPE_OF_CODE: Final = {each.onnx: each.datatype for each in NUMBER_TYPES if each.onnx} | {
    _TEXTS: BYTES
}
"""The protocol's datatypes by the codes of `TensorProto.DataType`."""
ROWS: Final = "rows"
"""The name given to a leading size that all tensors share."""
_GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 5, 11, 12
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
