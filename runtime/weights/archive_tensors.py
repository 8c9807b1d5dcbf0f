"""The tensors of a program's archive: the position of their bytes, and their shapes and strides.

A stored tensor is the range of bytes that a weight spans; weights that share a range are tied.
Shapes and strides are applied when the bytes are on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.errors import ModelInvalid
from runtime.weights.archive import CONSTANTS, WEIGHTS, Archive, require_object
from runtime.weights.safetensors_files import DTYPES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

STORED_DTYPES = {
    1: "U8", 2: "I8", 3: "I16", 4: "I32", 5: "I64", 6: "F16", 7: "F32", 8: "F64", 12: "BOOL",
    13: "BF16", 28: "U16", 29: "F8_E4M3", 30: "F8_E5M2", 34: "U32", 35: "U64",
}  # fmt: skip
"""Supported codes of `torch._export.serde.schema.ScalarType`, with safetensors' type names."""
TENSOR_PREFIX = "tensor_"
"""Constants of other kinds are pickled objects."""
MAX_ELEMENTS = 2**48


@dataclass(frozen=True, slots=True)
class TensorView:
    """A weight as a view of its bytes; sizes and strides in elements."""

    stored: StoredTensor
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def apply_to(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(self.sizes, self.strides)


def read_views(archive: Archive) -> dict[str, dict[str, TensorView]]:
    """Weights and constants by directory and name; raises ModelInvalid, also if one is pickled."""
    return {
        directory: {
            name: _view(archive, directory, name, entry)
            for name, entry in archive.tensor_entries(directory).items()
        }
        for directory in (WEIGHTS, CONSTANTS)
    }


def tensors_of_program(path: Path, name: str) -> tuple[StoredTensor, ...]:
    """The ranges of bytes of all weights and constants, each once; raises ModelInvalid.

    `name` is the file's in errors.
    """
    views = [view for named in read_views(Archive(path, name)).values() for view in named.values()]
    stored = {view.stored.name: view.stored for view in views}
    return tuple(sorted(stored.values(), key=lambda each: (each.offset, each.name)))


def _view(archive: Archive, directory: str, name: str, entry: Any) -> TensorView:
    about = require_object(entry, f"{directory}{name}")
    path = about.get("path_name")
    is_tensor = directory == WEIGHTS or str(path).startswith(TENSOR_PREFIX)
    if about.get("use_pickle") or not is_tensor:
        raise ModelInvalid(
            f"the program has {name!r} pickled ({directory}{path}), and nothing is unpickled;"
            " make it a plain tensor and export again"
        )
    meta = require_object(about.get("tensor_meta"), f"{directory}{name}")
    dtype = STORED_DTYPES.get(meta.get("dtype", 0))
    if dtype is None:
        raise ModelInvalid(f"{name!r} of the program has an unsupported type")
    sizes = _numbers(meta.get("sizes"), name)
    strides = _numbers(meta.get("strides"), name)
    (start,) = _numbers([meta.get("storage_offset")], name)
    if len(sizes) != len(strides) or math.prod(sizes) > MAX_ELEMENTS:
        raise ModelInvalid(f"{name!r} of the program has sizes {sizes} and strides {strides}")
    span = _span(sizes, strides)
    record, item = archive.record(f"{directory}{path}"), DTYPES[dtype].itemsize
    if (start + span) * item > record.size_bytes:
        raise ModelInvalid(
            f"{name!r} of the program needs {(start + span) * item} bytes of {directory}{path},"
            f" which has {record.size_bytes}"
        )
    stored = StoredTensor(
        f"{directory}{path}:{dtype}:{start}:{span}",
        dtype,
        (span,),
        record.offset + start * item,
        span * item,
    )
    return TensorView(stored, sizes, strides)


def _span(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _numbers(entries: Any, name: str) -> tuple[int, ...]:
    values = [
        entry.get("as_int") if isinstance(entry, dict) else None
        for entry in (entries if isinstance(entries, list) else [None])
    ]
    numbers = tuple(value for value in values if type(value) is int and 0 <= value < MAX_ELEMENTS)
    if len(numbers) != len(values):
        raise ModelInvalid(
            f"sizes of {name!r} of the program must be plain numbers, were {str(entries)[:80]}"
        )
    return numbers


def input_views(archive: Archive, names: Mapping[str, tuple[str, str]]) -> dict[str, TensorView]:
    """The view of each of the graph's inputs that is a weight; raises ModelInvalid.

    `names` has the directory and the name of the weight by the name of the input.
    """
    stored = read_views(archive)
    views = {}
    for input_name, (directory, name) in names.items():
        if name not in stored[directory]:
            raise ModelInvalid(f"the program is incomplete: {name!r} is not in {directory}")
        views[input_name] = stored[directory][name]
    return views
