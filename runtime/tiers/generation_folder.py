"""The files of one model generation on disk, and the check that they are as they were fetched.

`.listing.json` lists the model's files. Each fetched file `NAME` has a file `.NAME.sum` beside it
with its checksum, and its fingerprint (inode, size, times, boot) when the checksum was last right.
A file with the same fingerprint is not read: every write changes its times, and a new boot shows
that a crash of the node may have lost data. Any other file is read once and accepted if its
checksum is right. Files need no fsync, which for 1 GB can take longer than the download.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runtime.errors import LoadFailed, ModelInvalid
from runtime.storage.declared_files import OWN_ENGINES, FileRules
from runtime.storage.listing import WEIGHT_SUFFIX, RemoteFile
from runtime.storage.partial_file import PartialFile, boot_id

logger = logging.getLogger(__name__)

CACHE_NAME = re.compile(r"^[^~/]+~[^~/]+@[^~/]+$")
LISTING = ".listing.json"
READER = ".reader"
STAGING = ".staging"
INDEX = "model.safetensors.index.json"
READ_BYTES = 1024**2


def cache_name(key: str) -> str:
    """The name of a model's folder in the disk cache, and the prefix of its host-tier files."""
    return key.replace("/", "~")


def key_of_cache_name(name: str) -> str | None:
    """The model key of a `cache_name`; None for other names, such as `lost+found`."""
    return name.replace("~", "/") if CACHE_NAME.match(name) else None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The content of a `.sum` file."""

    crc32: int
    fingerprint: list[object]


class GenerationFolder:
    """One generation's folder. Writers must have the generation's download lock."""

    def __init__(self, path: Path, rules: FileRules = OWN_ENGINES) -> None:
        self.path = path
        self._rules = rules

    # The listing

    def listing(self) -> tuple[RemoteFile, ...] | None:
        """The model's files; None without a readable listing."""
        try:
            rows = json.loads((self.path / LISTING).read_text())
            return tuple(RemoteFile(str(path), int(size), str(tag)) for path, size, tag in rows)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            logger.warning("cached listing unreadable", extra={"path": self.path})
            return None

    def write_listing(self, listing: Iterable[RemoteFile], reader: str = "") -> None:
        """`reader`: whose credentials listed them, see `Storages.reader`."""
        rows = [[file.path, file.size_bytes, file.version] for file in listing]
        (self.path / LISTING).unlink(missing_ok=True)
        self._write(READER, reader)
        self._write(LISTING, json.dumps(rows))

    def reader(self) -> str:
        """Whose credentials listed the files; the pool's without a record."""
        try:
            return (self.path / READER).read_text()
        except OSError:
            return ""

    def weight_files(self, uri: str) -> tuple[RemoteFile, ...] | None:
        """The files of weights; None without a listing; raises ModelInvalid."""
        listing = self.listing()
        if listing is None:
            return None
        return self._rules.weights(listing, uri, self._indexed())

    def _indexed(self) -> frozenset[str] | None:
        """The files that an index of sharded weights names; None where no engine here reads it."""
        return _indexed_files(self.path / INDEX) if self._rules.reads_index else None

    def complete_bytes(self) -> int:
        """Bytes of the weights if every file is here with its size, else 0. Reads no weights."""
        try:
            files = self.weight_files(self.path.name) or ()
        except LoadFailed:
            return 0
        if any(self._recorded(file) is None for file in files):
            return 0
        return sum(file.size_bytes for file in files)

    # The files

    def missing_or_damaged(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        """The files that must be fetched. Reads files whose fingerprint has changed."""
        return [file for file in files if not self._is_intact(file)]

    def _is_intact(self, file: RemoteFile) -> bool:
        recorded = self._recorded(file)
        if recorded is None:
            return False
        path = self.path / file.path
        if _fingerprint(path) == recorded.fingerprint:
            return True
        if _crc32(path) == recorded.crc32:
            self.record(file, recorded.crc32)
            return True
        logger.warning("cached file damaged, fetching it again", extra={"path": path})
        return False

    def finish(self, partial: PartialFile) -> None:
        """Rename a complete file to its final name, after its checksum is written.

        A crash between the two leaves no file without a checksum.
        """
        file, crc32 = partial.file, partial.crc32()
        self._write(_sum_path(file.path), json.dumps([file.version, crc32, []]))
        partial.rename_to_target()
        self.record(file, crc32)

    def record(self, file: RemoteFile, crc32: int) -> None:
        """Record the checksum and the present fingerprint of a file."""
        fingerprint = _fingerprint(self.path / file.path)
        self._write(_sum_path(file.path), json.dumps([file.version, crc32, fingerprint]))

    def _recorded(self, file: RemoteFile) -> _Recorded | None:
        """The record of a file; None unless the file is here with the same size and version."""
        try:
            if (self.path / file.path).stat().st_size != file.size_bytes:
                return None
            text = (self.path / _sum_path(file.path)).read_text()
            version, crc32, fingerprint = json.loads(text)
            return _Recorded(int(crc32), list(fingerprint)) if version == file.version else None
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, name: str, text: str) -> None:
        """Write a small file atomically; raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        aside = self.path / f"{name}.{os.getpid()}-{threading.get_ident()}.aside"
        try:
            aside.write_text(text)
            os.replace(aside, self.path / name)
        finally:
            aside.unlink(missing_ok=True)


def _sum_path(path: str) -> str:
    pure = PurePosixPath(path)
    return str(pure.with_name(f".{pure.name}.sum"))


def _fingerprint(path: Path) -> list[object]:
    """A value that changes when a file is written to or replaced; raises OSError."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, boot_id()]


def _crc32(path: Path) -> int:
    total, buffer = 0, bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            total = zlib.crc32(memoryview(buffer)[:count], total)
    return total


def _indexed_files(index: Path) -> frozenset[str] | None:
    """The files that an index of sharded weights names; None without an index."""
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        names = frozenset(weight_map.values())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelInvalid(f"{index.name} is not an index of weights: {error!r}") from error
    if not names or not all(
        isinstance(name, str) and name.endswith(WEIGHT_SUFFIX) and "/" not in name for name in names
    ):
        raise ModelInvalid(
            f"{index.name} names files that are not safetensors: {sorted(map(str, names))}"
        )
    return names
