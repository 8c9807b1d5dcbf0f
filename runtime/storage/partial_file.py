"""A file on its way: which spans of it are here, so that another process can go on with the rest.

Beside the data (`NAME.part`) lies a journal (`NAME.part.spans`) with a line for each span that is
written, or for the piece that was when its read ended early; the next read goes on there. Data and
journal survive the death of a process, since the kernel has them; they are not synced, so those of
an earlier boot are not believed. One process at a time: the cache sees to that.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from runtime.storage.checksums import CRC32

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.storage.listing import RemoteFile

SPAN_BYTES = 8 * 1024**2
"""What one ranged read brings; see `python -m benchmarks storage`."""
PART = ".part"
JOURNAL = ".part.spans"


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes [start, end) of a file."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that were read in one go: to where, and their sum."""

    end: int
    crc32: int


def spans_of(size_bytes: int, step: int = SPAN_BYTES) -> list[ByteRange]:
    """A file's spans in order, all of `step` bytes but the last."""
    return [ByteRange(at, min(at + step, size_bytes)) for at in range(0, size_bytes, step)]


@cache
def boot() -> str:
    """What names the time since the kernel started; the same in all containers of a node."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class PartialFile:
    """The part of `target` that is here. Methods may be called from several threads."""

    def __init__(self, target: Path, file: RemoteFile) -> None:
        """Go on with what is there of this version of the file, or begin anew; raises OSError."""
        self.file = file
        self._target = target
        self._data = target.with_name(target.name + PART)
        self._journal = target.with_name(target.name + JOURNAL)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._on_span: Callable[[ByteRange], None] = lambda _: None
        self._pieces = self._read_journal()
        target.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self._descriptor).st_size != file.size_bytes:
            self._pieces.clear()
        if not self._pieces:
            self._journal.write_text(json.dumps(self._head()) + "\n")
            os.ftruncate(self._descriptor, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def allocate(self) -> None:
        """Set disk space aside for the whole file, so that a full disk is known at once."""
        if self.file.size_bytes:
            os.posix_fallocate(self._descriptor, 0, self.file.size_bytes)

    def missing(self) -> list[ByteRange]:
        """The spans that are not here yet, each from where it is not."""
        begun = [ByteRange(self._end_of(span), span.end) for span in spans_of(self.file.size_bytes)]
        return [rest for rest in begun if rest.size_bytes]

    def here(self) -> list[ByteRange]:
        """The spans that are here, whole."""
        return [span for span in spans_of(self.file.size_bytes) if self._end_of(span) == span.end]

    def _end_of(self, span: ByteRange) -> int:
        """How far a span is here."""
        at = span.start
        while at < span.end and at in self._pieces:
            at = self._pieces[at].end
        return at

    def tell(self, on_span: Callable[[ByteRange], None]) -> None:
        """Call `on_span` with each span once it is here whole, in the thread that wrote it."""
        self._on_span = on_span

    def duplicate(self) -> int:
        """A descriptor of the data, good also after the file has its name; the caller closes it."""
        return os.dup(self._descriptor)

    def write(self, data: memoryview, at: int) -> None:
        """Write all of `data` at byte `at`; raises OSError.

        One thread at a time, since the kernel lets no two write to one file: the second would not
        sleep but spin for the whole of the first's write, on a core that the others need.
        """
        with self._writing:
            while data:
                written = os.pwrite(self._descriptor, data, at)
                data, at = data[written:], at + written

    def note(self, written: ByteRange, crc32: int) -> None:
        """Remember that a span is written, or what was missing of it or a part of that; its sum."""
        line = json.dumps([written.start, written.end, crc32]) + "\n"
        with self._lock, self._journal.open("a") as journal:
            journal.write(line)
            self._pieces[written.start] = _Piece(written.end, crc32)
        start = written.start - written.start % SPAN_BYTES
        span = ByteRange(start, min(start + SPAN_BYTES, self.file.size_bytes))
        if written.end == span.end:
            self._on_span(span)

    def crc32(self) -> int:
        """The sum of the whole file, once nothing is missing."""
        return CRC32.join(
            (piece.crc32, piece.end - start) for start, piece in sorted(self._pieces.items())
        )

    def read_back(self, span: ByteRange) -> bytes:
        """A span that is here."""
        return os.pread(self._descriptor, span.size_bytes, span.start)

    def put_in_place(self) -> None:
        """Give the whole file its name."""
        os.replace(self._data, self._target)
        self._journal.unlink(missing_ok=True)

    def _head(self) -> list[object]:
        return [self.file.size_bytes, self.file.version, SPAN_BYTES, boot()]

    def _read_journal(self) -> dict[int, _Piece]:
        """What is here, by its start; nothing where the journal is of something else."""
        try:
            head, *lines = self._journal.read_text().splitlines(keepends=True)
            if json.loads(head) != self._head():
                return {}
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
            return {int(start): _Piece(int(end), int(crc32)) for start, end, crc32 in rows}
        except (OSError, ValueError, TypeError):
            return {}


def remove_partial(target: Path) -> None:
    """Delete what is there of a file on its way."""
    for ending in (PART, JOURNAL):
        target.with_name(target.name + ending).unlink(missing_ok=True)


def remove_stale_partials(folder: Path) -> None:
    """Delete what an earlier boot left, or lies without a journal. Nobody may be fetching."""
    for data in folder.rglob("*" + PART):
        journal = data.with_name(data.name.removesuffix(PART) + JOURNAL)
        try:
            is_of_this_boot = json.loads(journal.read_text().splitlines()[0])[-1] == boot()
        except (OSError, ValueError, LookupError, TypeError):
            is_of_this_boot = False
        if not is_of_this_boot:
            remove_partial(data.with_name(data.name.removesuffix(PART)))
