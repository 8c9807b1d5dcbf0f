"""The files of one model generation on disk, and whether they are what was fetched.

`.listing.json` says what the model is made of; beside each fetched file `NAME` lies `.NAME.sum`:
its checksum, and how it looked (inode, times, boot) when it was last known to be good. A file that
looks the same needs no reading: nobody can write to it without changing its times, and what a crash
of the node may have lost shows as another boot. Everything else is read once, and believed if the
sum is right. So nothing is synced: writing 1 GB through to a disk can take longer than fetching it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from runtime.errors import LoadFailed, ModelInvalid
from runtime.storage.checksums import CRC32
from runtime.storage.listing import RemoteFile, weight_files
from runtime.storage.partial_file import boot_id

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from runtime.storage.partial_file import PartialFile

logger = logging.getLogger(__name__)

LISTING = ".listing.json"
STAGING = ".staging"
INDEX = "model.safetensors.index.json"
READ_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a file that was fetched."""

    crc32: int
    looks: list[object]


class GenerationFolder:
    """One generation's folder. Whoever writes to it holds the generation's `fetch` lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # The listing

    def listing(self) -> tuple[RemoteFile, ...] | None:
        """What the model is made of; None where that is not known here."""
        try:
            rows = json.loads((self.path / LISTING).read_text())
            return tuple(RemoteFile(str(path), int(size), str(tag)) for path, size, tag in rows)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            logger.warning("cached listing unreadable", extra={"path": self.path})
            return None

    def write_listing(self, listing: Iterable[RemoteFile]) -> None:
        """Keep what the model is made of."""
        rows = [[file.path, file.size_bytes, file.version] for file in listing]
        self._write(LISTING, json.dumps(rows))

    def weight_files(self, uri: str) -> tuple[RemoteFile, ...] | None:
        """The files of weights; None without a listing; raises ModelInvalid."""
        listing = self.listing()
        if listing is None:
            return None
        return weight_files(listing, uri, _indexed_files(self.path / INDEX))

    def complete_bytes(self) -> int:
        """Bytes of the weights if every file is here and has its size, else 0. Reads no weights."""
        try:
            files = self.weight_files(self.path.name) or ()
        except LoadFailed:
            return 0
        if any(self._known(file) is None for file in files):
            return 0
        return sum(file.size_bytes for file in files)

    # The files

    def unsound(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        """Those of `files` that are not here as they were fetched. Reads what looks different."""
        return [file for file in files if not self._is_sound(file)]

    def _is_sound(self, file: RemoteFile) -> bool:
        known = self._known(file)
        if known is None:
            return False
        path = self.path / file.path
        if looks_of(path) == known.looks:
            return True
        if crc32_of(path) == known.crc32:
            self.remember(file, known.crc32)
            return True
        logger.warning("cached file is damaged, fetching it again", extra={"path": path})
        return False

    def put_in_place(self, partial: PartialFile) -> None:
        """Give a whole file its name; the sum first, so that no crash leaves a file without."""
        file, crc32 = partial.file, partial.crc32()
        self._write(_sum_of(file.path), json.dumps([file.version, crc32, []]))
        partial.rename_to_target()
        self.remember(file, crc32)

    def remember(self, file: RemoteFile, crc32: int) -> None:
        """Record that a file in its place has this sum, and how it looks now."""
        looks = looks_of(self.path / file.path)
        self._write(_sum_of(file.path), json.dumps([file.version, crc32, looks]))

    def _known(self, file: RemoteFile) -> _Known | None:
        """What was recorded of a file, if it is there with the size and version that is wanted."""
        try:
            if (self.path / file.path).stat().st_size != file.size_bytes:
                return None
            version, crc32, looks = json.loads((self.path / _sum_of(file.path)).read_text())
            return _Known(int(crc32), list(looks)) if version == file.version else None
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, name: str, text: str) -> None:
        """Write a small file whole or not at all; raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        aside = self.path / f"{name}.{os.getpid()}-{threading.get_ident()}.aside"
        try:
            aside.write_text(text)
            os.replace(aside, self.path / name)
        finally:
            aside.unlink(missing_ok=True)


def _sum_of(path: str) -> str:
    """Where the sum of a file is kept: beside it."""
    pure = PurePosixPath(path)
    return str(pure.with_name(f".{pure.name}.sum"))


def looks_of(path: Path) -> list[object]:
    """What changes when a file is written to or replaced; raises OSError."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, boot_id()]


def crc32_of(path: Path) -> int:
    """The sum of a file's content; raises OSError."""
    total, buffer = 0, bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            total = CRC32.update(memoryview(buffer)[:count], total)
    return total


def _indexed_files(index: Path) -> frozenset[str] | None:
    """The files that an index of sharded weights names; None where there is no index."""
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        names = frozenset(weight_map.values())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelInvalid(f"{index.name} is not an index of weights: {error!r}") from error
    if not names or not all(
        isinstance(name, str) and name.endswith(".safetensors") and "/" not in name
        for name in names
    ):
        raise ModelInvalid(
            f"{index.name} names files that are not safetensors: {sorted(map(str, names))}"
        )
    return names
