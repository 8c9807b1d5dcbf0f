"""Exported programs (`torch.export`), read without unpickling: their signature, and the engine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from torch.fx import GraphModule

from common.inference_protocol.tensors import NUMBER_TYPES
from runtime.engines.engine import Engine, ModelFolder, Skeleton
from runtime.engines.program_graph import build_graph
from runtime.errors import ModelInvalid
from runtime.weights.archive import (
    CONSTANTS,
    WEIGHTS,
    Archive,
    TensorView,
    input_views,
    parse_json,
    require_object,
)

_DATATYPE_OF_CODE = {
    each.exported: each.datatype for each in NUMBER_TYPES if each.exported and each.datatype
}
"""The protocol's datatypes by the codes of `torch._export.serde.schema.ScalarType`."""
SYMBOL = re.compile(r"(?:Symbol\('(\w+)'(?:, \w+=\w+)*\)|([su]\d+))")
ANY = ""
"""A size that the program computes from other sizes."""
MAX_SIZE = 2**40
SPECIALISED_BOUND = 2
"""torch never traces sizes of 0 and 1, so archives hold a lower bound of 2 for such a size; torch
itself ignores that bound (`torch._export.utils._check_input_constraints_for_graph`). A bound of 1
is in an archive only where the exporter's author set it."""

Size = int | str
"""A fixed size, the name of a dynamic one, or `ANY`."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output."""

    name: str
    graph_name: str
    datatype: str
    shape: tuple[Size, ...]

    def metadata(self) -> dict[str, Any]:
        """The entry of V2's model metadata, with -1 for dynamic sizes."""
        shape = [size if isinstance(size, int) else -1 for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


@dataclass(frozen=True, slots=True)
class Signature:
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: Mapping[str, tuple[str, str]]
    """By graph input that is a weight: the archive's directory of its bytes, and its name there."""
    ranges: Mapping[str, tuple[int, int]]
    """Bounds of the dynamic sizes."""
    least_size: int = 0
    """Of the dynamic sizes without bounds."""

    @property
    def batch_size(self) -> str | None:
        """The dynamic size that comes first in every input and output; None without one."""
        ports = (*self.inputs, *self.outputs)
        leading = {port.shape[0] if port.shape else 1 for port in ports}
        only = leading.pop() if len(leading) == 1 else 1
        return only if isinstance(only, str) and only != ANY else None

    def range_of(self, size: str) -> tuple[int, int]:
        low, high = self.ranges.get(size, (self.least_size, MAX_SIZE))
        return (0 if low == SPECIALISED_BOUND else low), high


def read_signature(document: Mapping[str, Any]) -> Signature:
    """The signature of a program's JSON document; raises ModelInvalid."""
    try:
        return _signature(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelInvalid(f"the program's signature cannot be read: {error!r}") from error


def _signature(document: Mapping[str, Any]) -> Signature:
    module = document["graph_module"]
    values = module["graph"]["tensor_values"]
    weights: dict[str, tuple[str, str]] = {}
    inputs: list[Port] = []
    for spec in module["signature"]["input_specs"]:
        ((kind, entry),) = require_object(spec, "an input").items()
        match kind:
            case "parameter":
                weights[entry["arg"]["name"]] = (WEIGHTS, entry["parameter_name"])
            case "buffer":
                directory = WEIGHTS if entry["persistent"] else CONSTANTS
                weights[entry["arg"]["name"]] = (directory, entry["buffer_name"])
            case "tensor_constant":
                weights[entry["arg"]["name"]] = (CONSTANTS, entry["tensor_constant_name"])
            case "constant_input":
                pass  # it was fixed when the program was exported
            case "user_input" if "as_tensor" in entry["arg"]:
                name = entry["arg"]["as_tensor"]["name"]
                inputs.append(_port(name, name, values))
            case _:
                raise ModelInvalid(
                    f"the program has an input that is no tensor ({kind}: {str(entry)[:80]});"
                    " requests hold tensors only: make it a constant when exporting the program"
                )
    outputs = _outputs(module, values)
    if not inputs or not outputs:
        raise ModelInvalid("the program must have an input and an output that are tensors")
    return Signature(tuple(inputs), outputs, weights, _ranges(document))


def _outputs(module: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Port, ...]:
    graph_names = []
    for spec in module["signature"]["output_specs"]:
        ((kind, entry),) = require_object(spec, "an output").items()
        if kind != "user_output":
            raise ModelInvalid(
                f"the program changes its own state ({kind}), which all requests share;"
                " put the model in evaluation mode and export it again"
            )
        if "as_tensor" not in entry["arg"]:
            raise ModelInvalid(f"the program has an output that is no tensor: {str(entry)[:80]}")
        graph_names.append(entry["arg"]["as_tensor"]["name"])
    names = _output_names(module, len(graph_names))
    return tuple(
        _port(name, graph_name, values) for name, graph_name in zip(names, graph_names, strict=True)
    )


def _port(name: str, graph_name: str, values: Mapping[str, Any]) -> Port:
    value = values[graph_name]
    datatype = _DATATYPE_OF_CODE.get(value["dtype"])
    if datatype is None:
        raise ModelInvalid(
            f"tensor {name!r} of the program has an unsupported type;"
            f" supported are {', '.join(_DATATYPE_OF_CODE.values())}"
        )
    return Port(name, graph_name, datatype, tuple(_size(size) for size in value["sizes"]))


def _size(entry: Mapping[str, Any]) -> Size:
    if "as_int" in entry:
        return int(entry["as_int"])
    found = SYMBOL.fullmatch(entry["as_expr"]["expr_str"])
    return (found[1] or found[2]) if found else ANY


def _ranges(document: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    ranges = {}
    for name, bounds in document.get("range_constraints", {}).items():
        low, high = bounds.get("min_val"), bounds.get("max_val")
        is_bounded = type(high) is int and high < MAX_SIZE
        ranges[name] = (low if type(low) is int else 0, high if is_bounded else MAX_SIZE)
    return ranges


def _output_names(module: Mapping[str, Any], count: int) -> list[str]:
    plain = [f"OUTPUT__{index}" for index in range(count)]
    try:
        _, spec = orjson.loads(module["module_call_graph"][0]["signature"]["out_spec"])
        names = [".".join(path) for path in _paths(spec)]
    except (KeyError, TypeError, ValueError, IndexError, RecursionError):
        return plain
    is_sound = len(set(names)) == count == len(names) and all(names)
    return [_numbered(name) for name in names] if is_sound else plain


def _numbered(name: str) -> str:
    return f"OUTPUT__{name}" if name.isdecimal() else name


def _paths(spec: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    if spec["type"] is None:
        return [()]
    children = spec["children_spec"]
    try:
        keys = orjson.loads(spec["context"])
    except (TypeError, ValueError):
        keys = None
    is_named = isinstance(keys, list) and len(keys) == len(children)
    if not is_named or not all(isinstance(key, str) for key in keys):
        keys = [str(index) for index in range(len(children))]
    return [
        (key, *path) for key, child in zip(keys, children, strict=True) for path in _paths(child)
    ]


def describe_shape(port: Port, signature: Signature) -> str:
    """An input's shape for an error message, such as `[1 to 64, 3, 1 or more]`."""
    return f"[{', '.join(_allowed(size, signature) for size in port.shape)}]"


def _allowed(size: Size, signature: Signature) -> str:
    if isinstance(size, int):
        return str(size)
    low, high = signature.range_of(size)
    if size == ANY or high >= MAX_SIZE:
        return f"{low} or more"
    return f"{low} to {high}"


MAJOR_VERSION = 8
"""Supported version of `torch._export.serde.schema`; other versions have another layout."""


class Program:
    """Runs a graph, for one caller at a time. `ProgramSkeleton` attaches and detaches weights."""

    def __init__(
        self,
        module: GraphModule,
        order: Sequence[str],
        views: Mapping[str, TensorView],
        device: torch.device,
    ) -> None:
        self.device = device
        self.are_rows_independent = False
        """Whether a check found that rows do not affect each other, so requests can be batched."""
        self._module = module
        self._order = tuple(order)
        self._views = views
        self._weights: dict[str, torch.Tensor] = {}

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs; inputs by their names in the graph. Raises any error of torch."""
        weights = self._weights
        arguments = [weights[name] if name in weights else inputs[name] for name in self._order]
        outputs: tuple[torch.Tensor, ...] = self._module(*arguments)
        return outputs

    def attach(self, flat: Mapping[str, torch.Tensor]) -> None:
        self.are_rows_independent = False
        self._weights = {
            name: view.apply_to(flat[view.stored.name]) for name, view in self._views.items()
        }

    def detach(self) -> None:
        self.are_rows_independent = False
        self._weights = {}


class ProgramSkeleton(Skeleton):
    """A program whose weights can be attached and detached."""

    def __init__(self, key: str, program: Program) -> None:
        super().__init__(key, program, ())
        self._program = program

    def attach(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Attach weights; the first inference checks again whether rows are independent."""
        self.has_inferred = False
        self._program.attach(weights)

    def detach(self) -> None:
        self._program.detach()


def read_document(path: Path) -> Mapping[str, Any]:
    """A program's JSON document; raises ModelInvalid."""
    document = require_object(
        parse_json(Archive(path).program_bytes(), "the document"), "the document"
    )
    version = document.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != MAJOR_VERSION:
        raise ModelInvalid(
            f"the program has schema version {version}, only {MAJOR_VERSION}.* is supported;"
            f" export it with torch {torch.__version__.partition('+')[0]}"
        )
    return document


class ProgramEngine(Engine):
    name = "torch.export"

    def __init__(self, path: Path) -> None:
        self._path = path

    def skeleton_key(self, model: ModelFolder) -> str:
        """Equal for archives of one program with different weights."""
        archive = Archive(self._path)
        digest = hashlib.sha256(archive.program_bytes())
        for directory in (WEIGHTS, CONSTANTS):
            digest.update(repr(sorted(archive.tensor_entries(directory).items())).encode())
        return f"program {digest.hexdigest()}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        document = read_document(self._path)
        signature = read_signature(document)
        views = input_views(Archive(self._path), signature.weights)
        module = require_object(document.get("graph_module"), "the module")
        graph = require_object(module.get("graph"), "the graph")
        built, order = build_graph(graph, views.keys(), device)
        unknown = set(order) - views.keys() - {port.graph_name for port in signature.inputs}
        if unknown:
            raise ModelInvalid(f"the program's graph has undefined inputs {sorted(unknown)[:3]}")
        return ProgramSkeleton(key, Program(built, order, views, device))
