"""A file under download, and a journal of its written ranges, so that a later process continues.

Beside the data (`NAME.part`) lies a journal (`NAME.part.spans`) with a line for each written span,
or for the written part of a span whose read ended early; the next download continues there. The
kernel keeps data and journal when a process dies; they are not synced, so those of an earlier boot
are discarded. The disk cache lets one process at a time write.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Self

from runtime.storage.listing import RemoteFile

_POLYNOMIAL: Final = 0xEDB88320
"""Of zlib's CRC-32, with the lowest power in the highest bit."""


def combined_crc32(parts: Iterable[tuple[int, int]]) -> int:
    """The CRC-32 of a whole, from checksum and length in bytes of each part in order.

    Appending n zero bytes multiplies a checksum by x to the power of 8n, as in zlib's
    `crc32_combine`, which Python has from 3.15 on.
    """
    total = 0
    for part, length in parts:
        total = _product(_power_of_x(8 * length), total) ^ part
    return total


def _product(one: int, other: int) -> int:
    """Of polynomials over GF(2), modulo that of CRC-32."""
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product


@lru_cache(maxsize=64)
def _power_of_x(exponent: int) -> int:
    power, square = 1 << 31, 1 << 30
    while exponent:
        if exponent & 1:
            power = _product(square, power)
        square = _product(square, square)
        exponent >>= 1
    return power


SPAN_BYTES = 8 * 1024**2
"""Size of one ranged read; see `python -m benchmarks storage`."""
PARTIAL_SUFFIX = ".part"
JOURNAL_SUFFIX = ".part.spans"


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes [start, end) of a file."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Written:
    end: int
    crc32: int


def split_spans(size_bytes: int, span_bytes: int = SPAN_BYTES) -> list[ByteRange]:
    """A whole's spans in order, all of `span_bytes` but the last."""
    return [
        ByteRange(at, min(at + span_bytes, size_bytes)) for at in range(0, size_bytes, span_bytes)
    ]


@cache
def boot_id() -> str:
    """Changes with each start of the kernel; the same in all containers of a node."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class PartialFile:
    """The downloaded part of `target`. Methods may be called from several threads."""

    def __init__(self, target: Path, file: RemoteFile) -> None:
        """Continue an earlier download of this version of the file, or start; raises OSError."""
        self.file = file
        self._target = target
        self._data = target.with_name(target.name + PARTIAL_SUFFIX)
        self._journal = target.with_name(target.name + JOURNAL_SUFFIX)
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._written = self._read_journal()
        target.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self._descriptor).st_size != file.size_bytes:
            self._written.clear()
        if not self._written:
            self._journal.write_text(json.dumps(self._journal_header()) + "\n")
            os.ftruncate(self._descriptor, 0)

    @property
    def path(self) -> Path:
        """Where the data is until the file is complete and renamed."""
        return self._data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def allocate(self) -> None:
        """Reserve disk space for the whole file, so that a full disk shows before the download."""
        if self.file.size_bytes:
            os.posix_fallocate(self._descriptor, 0, self.file.size_bytes)

    def missing_ranges(self) -> list[ByteRange]:
        """The missing end of each span that is not complete."""
        rests = [
            ByteRange(self._written_to(span), span.end)
            for span in split_spans(self.file.size_bytes)
        ]
        return [rest for rest in rests if rest.size_bytes]

    def _written_to(self, span: ByteRange) -> int:
        """First byte of a span that is not written, counted without gaps from its start."""
        at = span.start
        while at < span.end and at in self._written:
            at = self._written[at].end
        return at

    def write(self, data: memoryview, at: int) -> None:
        """Write all of `data` at byte `at`; raises OSError.

        One thread at a time: the kernel lets no two write to one file, and the second would spin,
        not sleep, during the first one's write, on a core that the others need.
        """
        with self._write_lock:
            while data:
                count = os.pwrite(self._descriptor, data, at)
                data, at = data[count:], at + count

    def record_written(self, written: ByteRange, crc32: int) -> None:
        """Record a written range, which lies within one span, with its checksum."""
        line = json.dumps([written.start, written.end, crc32]) + "\n"
        with self._lock, self._journal.open("a") as journal:
            journal.write(line)
            self._written[written.start] = _Written(written.end, crc32)

    def crc32(self) -> int:
        """Checksum of the whole file, once nothing is missing."""
        return combined_crc32(
            (written.crc32, written.end - start) for start, written in sorted(self._written.items())
        )

    def rename_to_target(self) -> None:
        """Give the complete file its name."""
        os.replace(self._data, self._target)
        self._journal.unlink(missing_ok=True)

    def _journal_header(self) -> list[object]:
        return [self.file.size_bytes, self.file.version, SPAN_BYTES, boot_id()]

    def _read_journal(self) -> dict[int, _Written]:
        """The written ranges by their start; none if the journal belongs to another version."""
        try:
            header, *lines = self._journal.read_text().splitlines(keepends=True)
            if json.loads(header) != self._journal_header():
                return {}
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
            return {int(start): _Written(int(end), int(crc32)) for start, end, crc32 in rows}
        except (OSError, ValueError, TypeError):
            return {}


def remove_partial(target: Path) -> None:
    """Delete the data and the journal of an unfinished download of `target`."""
    for suffix in (PARTIAL_SUFFIX, JOURNAL_SUFFIX):
        target.with_name(target.name + suffix).unlink(missing_ok=True)


def partial_targets(folder: Path) -> list[Path]:
    """Paths below a folder that have an unfinished download."""
    return [
        data.with_name(data.name.removesuffix(PARTIAL_SUFFIX))
        for data in folder.rglob("*" + PARTIAL_SUFFIX)
    ]


def remove_stale_partials(folder: Path) -> None:
    """Delete downloads of an earlier boot or without a journal. None may be running."""
    for target in partial_targets(folder):
        journal = target.with_name(target.name + JOURNAL_SUFFIX)
        try:
            is_of_this_boot = json.loads(journal.read_text().splitlines()[0])[-1] == boot_id()
        except (OSError, ValueError, LookupError, TypeError):
            is_of_this_boot = False
        if not is_of_this_boot:
            remove_partial(target)


def folder_bytes(folder: Path) -> int:
    return sum(
        file_bytes(os.path.join(parent, name))
        for parent, _, names in os.walk(folder)
        for name in names
    )


def file_bytes(path: str | Path) -> int:
    """Size of a file; 0 if there is none, such as one renamed meanwhile."""
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0
