"""A `torch.export` archive (`.pt2`) as a folder of records, read without unpickling anything.

`torch.export.load` (torch 2.13) is not used: it unpickles sample inputs and the weights and
constants that the archive marks as pickled, accepts any attribute below `torch` as an operator
(`torch.os.system`), and passes symbolic sizes to `sympy.sympify`, which evaluates them. An archive
is a zip of JSON documents and raw tensors; only these are read.
"""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODELS = "models/"
WEIGHTS = "data/weights/"
CONSTANTS = "data/constants/"
COMPILED = "data/aotinductor/"
MAX_RECORDS = 200_000
MAX_JSON_BYTES = 256 * 1024**2
LOCAL_HEADER_BYTES = 30
LOCAL_SIGNATURE = b"PK\x03\x04"


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


TORCHSCRIPT_ADVICE = (
    "TorchScript is not served: loading it runs code that came with it, which can read and write"
    " files. Export the model with torch.export.export and torch.export.save to a .pt2 file"
)


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
