"""A `torch.export` archive (`.pt2`) as a folder of records, read without unpickling anything.

`torch.export.load` (torch 2.13) unpickles sample inputs and whatever weights and constants the
archive marks so, takes any attribute below `torch` for an operator (`torch.os.system`), and hands
symbolic sizes to `sympy.sympify`, which evaluates them. So it is not called. An archive is a zip of
JSON documents and raw tensors, and these are all that is read here.
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
MOST_RECORDS = 200_000
MOST_JSON_BYTES = 256 * 1024**2
LOCAL_HEADER_BYTES = 30
LOCAL_SIGNATURE = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class Record:
    """The bytes of one entry, as they lie in the file."""

    offset: int
    size_bytes: int


class Archive:
    """The records of one archive by their path, without the folder they are all in."""

    def __init__(self, path: Path, name: str = "") -> None:
        """Read the directory; raises ModelInvalid for a file that is no program.

        `name` is the file's in errors, where `path` does not say it.
        """
        self._path = path
        self._file = name or path.name
        self._records = _records(path, self._file)
        names = [name for name in self._records if name.startswith(MODELS)]
        programs = [name for name in names if name.endswith(".json")]
        self.check_is_program(len(programs))
        self._program = programs[0]

    @property
    def name(self) -> str:
        """What the archive calls its program."""
        return self._program.removeprefix(MODELS).removesuffix(".json")

    def check_is_program(self, count: int) -> None:
        """Raise ModelInvalid for what else such a file can be."""
        if any(name.startswith("code/") for name in self._records):
            raise ModelInvalid(f"{self._file} is a TorchScript archive; {TORCHSCRIPT_ADVICE}")
        if any(name.startswith(COMPILED) for name in self._records):
            raise ModelInvalid(
                f"{self._file} holds compiled code (AOTInductor), which is never run;"
                " save the exported program itself with torch.export.save"
            )
        if count != 1:
            raise ModelInvalid(
                f"{self._file} must hold one exported program at {MODELS}*.json, holds"
                f" {count}; save it with torch.export.save of torch 2.9 or later"
            )

    def program_bytes(self) -> bytes:
        """The program's JSON document."""
        return self.read(self._program)

    def tensor_entries(self, directory: str, kind: str) -> Mapping[str, Any]:
        """What the archive says of its weights or constants, by name; raises ModelInvalid."""
        name = f"{directory}{self.name}_{kind}_config.json"
        if name not in self._records:
            raise ModelInvalid(
                f"{self._file} has no {name}: it may keep its {kind} pickled, as torch before"
                " 2.9 did, and nothing is unpickled; export and save it anew"
            )
        return require_object(
            require_object(parse_json(self.read(name), name), name).get("config"), name
        )

    def record(self, name: str) -> Record:
        """Where a record lies; raises ModelInvalid."""
        if name not in self._records:
            raise ModelInvalid(f"{self._file} is not whole: it has no {name}")
        return self._records[name]

    def read(self, name: str) -> bytes:
        """A small record; raises ModelInvalid."""
        record = self.record(name)
        if record.size_bytes > MOST_JSON_BYTES:
            raise ModelInvalid(
                f"{self._file}: {name} has {record.size_bytes} bytes, {MOST_JSON_BYTES} are allowed"
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
    """JSON, or ModelInvalid."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ModelInvalid(f"{what} of the program is not valid JSON: {error}") from error


def require_object(value: Any, what: str) -> dict[str, Any]:
    """`value` as a JSON object, or ModelInvalid."""
    if not isinstance(value, dict):
        raise ModelInvalid(f"{what} of the program must be an object, was {type(value).__name__}")
    return value


def _records(path: Path, file: str) -> dict[str, Record]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as source:
            entries = archive.infolist()
            size = path.stat().st_size
            if len(entries) > MOST_RECORDS:
                raise ModelInvalid(f"{file} has {len(entries)} records, at most {MOST_RECORDS}")
            return {
                entry.filename.partition("/")[2]: _record(entry, source, size) for entry in entries
            }
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise ModelInvalid(f"{file} is no whole archive: {error}") from error
    except OSError as error:
        raise ModelInvalid(f"{file} cannot be read: {error}") from error


def _record(entry: zipfile.ZipInfo, source: Any, size: int) -> Record:
    """Where an entry's bytes begin: behind its local header, whose length the directory lacks."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 0x1:
        raise ValueError(f"{entry.filename} is compressed or encrypted, which torch never writes")
    source.seek(entry.header_offset)
    header = source.read(LOCAL_HEADER_BYTES)
    if len(header) < LOCAL_HEADER_BYTES or not header.startswith(LOCAL_SIGNATURE):
        raise ValueError(f"{entry.filename} is not where the directory says")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    offset = entry.header_offset + LOCAL_HEADER_BYTES + name_length + extra_length
    if entry.file_size != entry.compress_size or offset + entry.file_size > size:
        raise ValueError(f"{entry.filename} reaches beyond the end of the file")
    return Record(offset, entry.file_size)
