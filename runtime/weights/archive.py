"""A `torch.export` archive (`.pt2`) as a folder of records, read without unpickling anything.

`torch.export.load` (torch 2.13) is not used: it unpickles sample inputs and the weights and
constants that the archive marks as pickled, accepts any attribute below `torch` as an operator
(`torch.os.system`), and passes symbolic sizes to `sympy.sympify`, which evaluates them. An archive
is a zip of JSON documents and raw tensors; only these are read.

A stored tensor is the range of bytes that a weight spans; weights that share a range are tied.
Shapes and strides are applied when the bytes are on the device.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch

from common.inference_protocol.tensors import NUMBER_TYPES
from runtime.errors import ModelInvalid
from runtime.weights.safetensors_files import DTYPES, StoredTensor

MODELS = "models/"
WEIGHTS = "data/weights/"
CONSTANTS = "data/constants/"
COMPILED = "data/aotinductor/"
MAX_RECORDS = 200_000
MAX_JSON_BYTES = 256 * 1024**2
LOCAL_HEADER_BYTES = 30
LOCAL_SIGNATURE = b"PK\x03\x04"
TORCHSCRIPT_ADVICE = (
    "TorchScript is not served: loading it runs code that came with it, which can read and write"
    " files. Export the model with torch.export.export and torch.export.save to a .pt2 file"
)
STORED_TYPES = {each.exported: each.safetensors for each in NUMBER_TYPES if each.exported}
"""Supported codes of `torch._export.serde.schema.ScalarType`, with safetensors' type names."""
TENSOR_PREFIX = "tensor_"
"""Constants of other kinds are pickled objects."""
MAX_ELEMENTS = 2**48


@dataclass(frozen=True, slots=True)
class Record:
    """Position of an entry's bytes in the file."""

    offset: int
    size_bytes: int


class Archive:
    """The records of one archive, by their path without the archive's top folder."""

    def __init__(self, path: Path, name: str = "") -> None:
        """Read the directory; raises ModelInvalid if the file is not an exported program.

        `name` replaces that of `path` in errors.
        """
        self._path = path
        self._file = name or path.name
        self._records = _records(path, self._file)
        names = [name for name in self._records if name.startswith(MODELS)]
        programs = [name for name in names if name.endswith(".json")]
        self._check_is_program(len(programs))
        self._program = programs[0]

    @property
    def name(self) -> str:
        return self._program.removeprefix(MODELS).removesuffix(".json")

    def _check_is_program(self, count: int) -> None:
        if any(name.startswith("code/") for name in self._records):
            raise ModelInvalid(f"{self._file} is a TorchScript archive; {TORCHSCRIPT_ADVICE}")
        if any(name.startswith(COMPILED) for name in self._records):
            raise ModelInvalid(
                f"{self._file} has compiled code (AOTInductor), which is never run;"
                " save the exported program itself with torch.export.save"
            )
        if count != 1:
            raise ModelInvalid(
                f"{self._file} must have one exported program at {MODELS}*.json, has"
                f" {count}; save it with torch.export.save of torch 2.9 or later"
            )

    def program_bytes(self) -> bytes:
        return self.read(self._program)

    def tensor_entries(self, directory: str) -> Mapping[str, Any]:
        """The archive's description of its weights or constants, by name; raises ModelInvalid."""
        kind = directory.split("/")[1]
        name = f"{directory}{self.name}_{kind}_config.json"
        if name not in self._records:
            raise ModelInvalid(
                f"{self._file} has no {name}: its {kind} may be pickled, as by torch before 2.9,"
                " and nothing is unpickled; export and save it again"
            )
        return require_object(
            require_object(parse_json(self.read(name), name), name).get("config"), name
        )

    def record(self, name: str) -> Record:
        """The position of a record; raises ModelInvalid."""
        if name not in self._records:
            raise ModelInvalid(f"{self._file} is incomplete: it has no {name}")
        return self._records[name]

    def read(self, name: str) -> bytes:
        """The bytes of a small record; raises ModelInvalid."""
        record = self.record(name)
        if record.size_bytes > MAX_JSON_BYTES:
            raise ModelInvalid(
                f"{self._file}: {name} has {record.size_bytes} bytes, {MAX_JSON_BYTES} are allowed"
            )
        try:
            with self._path.open("rb") as source:
                source.seek(record.offset)
                return source.read(record.size_bytes)
        except OSError as error:
            raise ModelInvalid(f"{self._file} cannot be read: {error}") from error


def parse_json(content: bytes, what: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ModelInvalid(f"{what} of the program is not valid JSON: {error}") from error


def require_object(value: Any, what: str) -> dict[str, Any]:
    """`value`, if it is a JSON object; raises ModelInvalid."""
    if not isinstance(value, dict):
        raise ModelInvalid(f"{what} of the program must be an object, was {type(value).__name__}")
    return value


def _records(path: Path, file: str) -> dict[str, Record]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as source:
            entries = archive.infolist()
            size = path.stat().st_size
            if len(entries) > MAX_RECORDS:
                raise ModelInvalid(f"{file} has {len(entries)} records, {MAX_RECORDS} are allowed")
            return {
                entry.filename.partition("/")[2]: _record(entry, source, size) for entry in entries
            }
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise ModelInvalid(f"{file} is not a complete archive: {error}") from error
    except OSError as error:
        raise ModelInvalid(f"{file} cannot be read: {error}") from error


def _record(entry: zipfile.ZipInfo, source: Any, size: int) -> Record:
    """An entry's bytes follow its local header, whose length the directory does not have."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 0x1:
        raise ValueError(f"{entry.filename} is compressed or encrypted, which torch never writes")
    source.seek(entry.header_offset)
    header = source.read(LOCAL_HEADER_BYTES)
    if len(header) < LOCAL_HEADER_BYTES or not header.startswith(LOCAL_SIGNATURE):
        raise ValueError(f"{entry.filename} is not at the position that the directory has")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    offset = entry.header_offset + LOCAL_HEADER_BYTES + name_length + extra_length
    if entry.file_size != entry.compress_size or offset + entry.file_size > size:
        raise ValueError(f"{entry.filename} reaches beyond the end of the file")
    return Record(offset, entry.file_size)


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
    dtype = STORED_TYPES.get(meta.get("dtype", 0))
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
