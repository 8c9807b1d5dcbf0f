"""Downloads the missing ranges of a file in parallel; an interrupted range resumes where it ended.

An object store limits one connection to a fraction of a machine's rate, and its first byte is slow,
so several readers share a file. A reader raises `ReadInterrupted` where another attempt may
succeed; every other error ends the download.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from common.backoff import Backoff
from runtime.errors import StorageFailed
from runtime.metrics import DOWNLOADED_BYTES, RANGE_RETRIES
from runtime.storage.bandwidth import BandwidthUse
from runtime.storage.partial_file import ByteRange, PartialFile

CHUNK_BYTES = 256 * 1024
"""Longer writes save CPU time where the page cache reuses memory, and cost more where a virtual
machine must first get the memory from its host."""
MAX_ATTEMPTS = 6
"""Attempts in a row that may return no byte; the pauses between them add up to 3 s."""
_BACKOFF = Backoff(initial_s=0.1)


class ReadInterrupted(Exception):
    """A read ended early or could not begin; another attempt may succeed."""


class RangeReader(Protocol):
    """Reads one file, in one thread, over one connection at a time."""

    def read(self, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        """Bytes [start, end) in views of `buffer`; raises ReadInterrupted, LoadFailed.

        A read that ends early without an error counts as interrupted.
        """

    def abort(self) -> None:
        """Make a read in another thread end soon: it raises ReadInterrupted or ends early."""


def download_ranges(
    open_reader: Callable[[], AbstractContextManager[RangeReader]],
    partial: PartialFile,
    bandwidth: BandwidthUse,
    *,
    name: str,
    readers: int,
) -> None:
    """Download every missing range of `partial`.

    Raises LoadFailed (with `name` in the message), LoadCancelled, and OSError on a write error.

    Args:
        open_reader: opens a reader of the file for one thread.
        partial: receives the bytes.
        bandwidth: limits the rate; its ticket cancels the download.
        name: of the file, for errors.
        readers: of the file at once.
    """
    if missing := partial.missing_ranges():
        _RangedDownload(open_reader, partial, bandwidth, name, deque(missing)).run(readers)


@dataclass(eq=False, slots=True)
class _RangedDownload:
    """One file's download. Workers take ranges until none is left or a worker has failed."""

    open_reader: Callable[[], AbstractContextManager[RangeReader]]
    partial: PartialFile
    bandwidth: BandwidthUse
    name: str
    pending: deque[ByteRange]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _readers: list[RangeReader] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None

    def run(self, readers: int) -> None:
        readers = min(readers, len(self.pending))
        self.bandwidth.ticket.add_listener(self._abort_if_cancelled)
        try:
            if readers == 1:
                self._work()
            else:
                with ThreadPoolExecutor(readers, "ranges") as pool:
                    for _ in range(readers):
                        pool.submit(self._work)
        finally:
            self.bandwidth.ticket.remove_listener(self._abort_if_cancelled)
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its traceback holds this, and the buffers of a worker

    def _abort_if_cancelled(self) -> None:
        """Abort all reads of a cancelled load, so that it does not wait for responses."""
        if self.bandwidth.ticket.is_cancelled:
            with self._lock:
                readers = list(self._readers)
            for reader in readers:
                reader.abort()

    def _work(self) -> None:
        try:
            buffer = memoryview(bytearray(CHUNK_BYTES))
            with (
                self.bandwidth.connection_slot(),
                self.open_reader() as reader,
                self._abortable(reader),
            ):
                while (span := self._next_range()) is not None:
                    self._download(reader, span, buffer)
        except BaseException as error:  # raised by `run`
            with self._lock:
                self._failure = self._failure or error
            self._stop.set()

    @contextmanager
    def _abortable(self, reader: RangeReader) -> Iterator[None]:
        with self._lock:
            self._readers.append(reader)
        try:
            self.bandwidth.ticket.raise_if_cancelled()
            yield
        finally:
            with self._lock:
                self._readers.remove(reader)

    def _next_range(self) -> ByteRange | None:
        with self._lock:
            return self.pending.popleft() if self.pending and not self._stop.is_set() else None

    def _download(self, reader: RangeReader, span: ByteRange, buffer: memoryview) -> None:
        """Read a range and record the bytes written, also if the download ends before its end."""
        progress = _RangeProgress(span.start)
        try:
            self._read(reader, span, buffer, progress)
        finally:
            if progress.at > span.start:
                self.partial.record_written(ByteRange(span.start, progress.at), progress.crc32)

    def _read(
        self, reader: RangeReader, span: ByteRange, buffer: memoryview, progress: _RangeProgress
    ) -> None:
        failures = 0
        while True:
            started_at = progress.at
            try:
                for chunk in reader.read(progress.at, span.end, buffer):
                    self.bandwidth.take(len(chunk))
                    self.partial.write(chunk, progress.at)
                    progress.crc32 = zlib.crc32(chunk, progress.crc32)
                    progress.at += len(chunk)
                    DOWNLOADED_BYTES.inc(len(chunk))
                    if self._stop.is_set():
                        return
                if progress.at >= span.end:
                    return
                interruption = ReadInterrupted("the body was shorter than asked for")
            except ReadInterrupted as error:
                interruption = error
            self.bandwidth.ticket.raise_if_cancelled()
            failures = failures + 1 if progress.at == started_at else 1
            if failures >= MAX_ATTEMPTS:
                raise StorageFailed(
                    f"the download of {self.name} was interrupted at byte {progress.at} of"
                    f" {self.partial.file.size_bytes}, {failures} times in a row: {interruption}"
                ) from interruption
            RANGE_RETRIES.inc()
            pause_s = _BACKOFF.pause_s(failures) * random.uniform(0.5, 1.0)
            if self._stop.wait(pause_s):
                return


@dataclass(slots=True)
class _RangeProgress:
    """Position and checksum of one range. Mutable: owned by its thread."""

    at: int
    crc32: int = 0
