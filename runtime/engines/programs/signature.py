"""What a program takes and gives: names, datatypes and shapes, with the sizes that may differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from runtime.errors import ModelInvalid
from runtime.weights.archive import CONSTANTS, WEIGHTS, require_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DATATYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64",
    12: "BOOL", 13: "BF16", 28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip
"""Codes of `torch._export.serde.schema.ScalarType`, by the protocol's names."""
SYMBOL = re.compile(r"(?:Symbol\('(\w+)'(?:, \w+=\w+)*\)|([su]\d+))")
ANY = ""
"""A size that the program works out from others."""
MOST_SIZE = 2**40
SPECIALISED = 2
"""Sizes of 0 and 1 are never traced, so archives say that a size is 2 or more; torch itself takes
such a bound for none (`torch._export.utils._check_input_constraints_for_graph`)."""

Size = int | str
"""A fixed size, the name of one that may differ, or `ANY`."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output."""

    name: str
    given: str
    """Its name in the graph."""
    datatype: str
    shape: tuple[Size, ...]

    def metadata(self) -> dict[str, Any]:
        """As V2's model metadata says it: -1 for a size that may differ."""
        shape = [size if isinstance(size, int) else -1 for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


@dataclass(frozen=True, slots=True)
class Signature:
    """A program's inputs and outputs."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: Mapping[str, tuple[str, str]]
    """Per input of the graph that is a weight: the directory of its bytes, and its name there."""
    ranges: Mapping[str, tuple[int, int]]
    """Smallest and largest value of the sizes that may differ."""

    @property
    def rows(self) -> str | None:
        """The size that is the first of every input and output; None: there is no such one."""
        ports = (*self.inputs, *self.outputs)
        leading = {port.shape[0] if port.shape else 1 for port in ports}
        only = leading.pop() if len(leading) == 1 else 1
        return only if isinstance(only, str) and only != ANY else None

    def range_of(self, size: str) -> tuple[int, int]:
        """The bounds of a size that may differ."""
        low, high = self.ranges.get(size, (1, MOST_SIZE))
        return (low if low > SPECIALISED else 1), high


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
        ((kind, about),) = require_object(spec, "an input").items()
        match kind:
            case "parameter":
                weights[about["arg"]["name"]] = (WEIGHTS, about["parameter_name"])
            case "buffer":
                directory = WEIGHTS if about["persistent"] else CONSTANTS
                weights[about["arg"]["name"]] = (directory, about["buffer_name"])
            case "tensor_constant":
                weights[about["arg"]["name"]] = (CONSTANTS, about["tensor_constant_name"])
            case "constant_input":
                pass  # it was fixed when the program was exported
            case "user_input" if "as_tensor" in about["arg"]:
                given = about["arg"]["as_tensor"]["name"]
                inputs.append(_port(given, given, values))
            case _:
                raise ModelInvalid(
                    f"the program has an input that is no tensor ({kind}: {str(about)[:80]});"
                    " only tensors are sent: fix it when the program is exported"
                )
    outputs = _outputs(module, values)
    if not inputs or not outputs:
        raise ModelInvalid("the program must have an input and an output that are tensors")
    return Signature(tuple(inputs), outputs, weights, _ranges(document))


def _outputs(module: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Port, ...]:
    given = []
    for spec in module["signature"]["output_specs"]:
        ((kind, about),) = require_object(spec, "an output").items()
        if kind != "user_output":
            raise ModelInvalid(
                f"the program changes its own state ({kind}), which requests would share;"
                " put the model in evaluation mode and export again"
            )
        if "as_tensor" not in about["arg"]:
            raise ModelInvalid(f"the program has an output that is no tensor: {str(about)[:80]}")
        given.append(about["arg"]["as_tensor"]["name"])
    names = _output_names(module, len(given))
    return tuple(_port(name, each, values) for name, each in zip(names, given, strict=True))


def _port(name: str, given: str, values: Mapping[str, Any]) -> Port:
    about = values[given]
    datatype = DATATYPES.get(about["dtype"])
    if datatype is None:
        raise ModelInvalid(
            f"tensor {name!r} of the program has a type that the protocol lacks;"
            f" it has {', '.join(DATATYPES.values())}"
        )
    return Port(name, given, datatype, tuple(_size(size) for size in about["sizes"]))


def _size(entry: Mapping[str, Any]) -> Size:
    if "as_int" in entry:
        return int(entry["as_int"])
    found = SYMBOL.fullmatch(entry["as_expr"]["expr_str"])
    return (found[1] or found[2]) if found else ANY


def _ranges(document: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    ranges = {}
    for name, about in document.get("range_constraints", {}).items():
        low, high = about.get("min_val"), about.get("max_val")
        is_bounded = type(high) is int and high < MOST_SIZE
        ranges[name] = (low if type(low) is int else 1, high if is_bounded else MOST_SIZE)
    return ranges


# Names of outputs: the keys of the dictionary that the model returned, where it returned one.


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
    """A shape for a message, such as `[1 to 64, 3, any]`."""
    return f"[{', '.join(_allowed(size, signature) for size in port.shape)}]"


def _allowed(size: Size, signature: Signature) -> str:
    if isinstance(size, int):
        return str(size)
    low, high = signature.range_of(size)
    if size == ANY or high >= MOST_SIZE:
        return f"{low} or more"
    return f"{low} to {high}"
