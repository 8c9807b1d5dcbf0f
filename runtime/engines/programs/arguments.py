"""Arguments of a program's nodes: from the archive's JSON to values and nodes of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from runtime.errors import ModelInvalid
from runtime.weights.archive_tensors import STORED_DTYPES
from runtime.weights.safetensors_files import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
STRIDED = 7
PLAIN = frozenset({
    "as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings", "as_int_lists",
})  # fmt: skip


class Arguments:
    """Resolves arguments against the values of the graph built so far."""

    def __init__(self, values: Mapping[str, Any], device: torch.device) -> None:
        """`device` replaces the device on which the program was exported."""
        self._values = values
        self._device = device

    def read(self, argument: Mapping[str, Any]) -> Any:
        """The argument's value; raises ModelInvalid for an unsupported kind."""
        ((kind, value),) = argument.items()
        match kind:
            case _ if kind in PLAIN:
                return value
            case "as_none":
                return None
            case "as_tensor":
                return self._values[value["name"]]
            case "as_tensors":
                return [self._values[each["name"]] for each in value]
            case "as_nested_tensors":
                return [[self._values[each["name"]] for each in row] for row in value]
            case "as_optional_tensor" | "as_sym_int" | "as_sym_bool" | "as_sym_float":
                return self._named(value)
            case "as_optional_tensors" | "as_sym_ints" | "as_sym_bools" | "as_sym_floats":
                return [self._named(each) for each in value]
            case "as_float":
                return float(value)
            case "as_floats":
                return [float(each) for each in value]
            case "as_complex":
                return complex(float(value["real"]), float(value["imag"]))
            case "as_scalar_type":
                return _dtype(value)
            case "as_memory_format":
                return MEMORY_FORMATS[value]
            case "as_layout" if value == STRIDED:
                return torch.strided
            case "as_device":
                return self._device
        raise ModelInvalid(f"the program has an unsupported argument: {str(argument)[:120]}")

    def _named(self, value: Mapping[str, Any]) -> Any:
        """The value of a name, or a literal value."""
        return self._values[value["as_name"]] if "as_name" in value else self.read(value)


def _dtype(code: int) -> torch.dtype:
    if code not in STORED_DTYPES:
        raise ModelInvalid(f"the program converts to an unsupported type (code {code})")
    return DTYPES[STORED_DTYPES[code]]
