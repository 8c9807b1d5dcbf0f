"""Fetches the missing spans of a file side by side, each again after a fault, as far as it came.

How many reads run at once follows from what they bring (`reader_count`). A source says what is
worth another try (`BrokenOff`); everything else ends the fetch.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from runtime.errors import StorageFailed
from runtime.metrics import DOWNLOADED_BYTES, RANGE_RETRIES
from runtime.storage.checksums import CRC32
from runtime.storage.download_concurrency import (
    FIRST_READERS,
    MOST_READERS,
    ReadRate,
    next_reader_count,
)
from runtime.storage.partial_file import SPAN_BYTES, ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from runtime.storage.bandwidth import BandwidthUse
    from runtime.storage.partial_file import PartialFile

LOOK_S = 0.025
"""How often the pace is looked at: a fraction of the time to the first byte of a store."""
CHUNK_BYTES = 256 * 1024
"""Longer writes save CPU time where the page cache gets memory that was in use before, and cost
more where a virtual machine must get it from its host first."""
ATTEMPTS = 6
"""In a row without a byte; 3 s of waiting in all."""
FIRST_PAUSE_S = 0.1


class BrokenOff(Exception):
    """A read ended early, or could not begin; another try may do better."""


class RangeReader(Protocol):
    """Reads one file, in one thread, over one connection at a time."""

    def read(self, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        """Bytes [start, end) in pieces of `buffer`, or fewer; raises BrokenOff or LoadFailed."""

    def abort(self) -> None:
        """End a read that another thread is in, soon; that read raises BrokenOff or is short."""


class RangeSource(Protocol):
    """A file that can be read in ranges."""

    def reader(self) -> AbstractContextManager[RangeReader]:
        """A reader for one thread."""


def fetch_ranges(
    source: RangeSource,
    partial: PartialFile,
    link: BandwidthUse,
    *,
    what: str,
    head_only: bool = False,
) -> None:
    """Bring every missing span of `partial`, named `what` in errors, or the first one alone.

    Raises LoadFailed, LoadCancelled, and OSError on a write error.
    """
    spans = [span for span in partial.missing() if span.start < SPAN_BYTES or not head_only]
    if spans:
        _Fetch(source, partial, link, what, spans).run()


class _Fetch:
    """One file's fetch. Workers take spans until there are none or one has failed."""

    def __init__(
        self,
        source: RangeSource,
        partial: PartialFile,
        link: BandwidthUse,
        what: str,
        spans: Sequence[ByteRange],
    ) -> None:
        self._source = source
        self._partial = partial
        self._link = link
        self._what = what
        self._todo = deque(spans)
        self._lock = threading.Lock()
        self._readers: list[RangeReader] = []
        self._working = 0
        self._brought_bytes = 0
        self._done = threading.Event()
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        self._link.ticket.add_listener(self._look)
        try:
            self._run()
        finally:
            self._link.ticket.remove_listener(self._look)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        if len(self._todo) <= 1:
            self._working = 1
            self._work()
        else:
            with ThreadPoolExecutor(min(MOST_READERS, len(self._todo)), "ranges") as pool:
                self._start_workers(pool, FIRST_READERS)
                self._grow(pool)

    def _look(self) -> None:
        """A load that is given up waits for no answer that is on its way."""
        if self._link.ticket.is_cancelled:
            with self._lock:
                readers = list(self._readers)
            for reader in readers:
                reader.abort()

    def _grow(self, pool: ThreadPoolExecutor) -> None:
        """Let readers join while they help; returns once none is at work."""
        begun_s, begun_bytes, before = time.monotonic(), 0, None
        while not self._done.wait(LOOK_S):
            now_s = time.monotonic()
            with self._lock:
                readers, brought = self._working, self._brought_bytes
            if not readers:
                continue
            pace = ReadRate(readers, (brought - begun_bytes) / (now_s - begun_s))
            if more := next_reader_count(pace, before, self._link.bytes_per_s):
                self._start_workers(pool, more)
                begun_s, begun_bytes, before = now_s, brought, pace

    def _start_workers(self, pool: ThreadPoolExecutor, count: int) -> None:
        for _ in range(count):
            with self._lock:
                if not self._todo:
                    return
                self._working += 1
            pool.submit(self._work)

    def _work(self) -> None:
        try:
            buffer = memoryview(bytearray(CHUNK_BYTES))
            with self._link.reader_place(), self._source.reader() as reader, self._known(reader):
                while (span := self._next()) is not None:
                    self._bring(reader, span, buffer)
        except BaseException as error:  # it belongs to whoever waits for the file
            with self._lock:
                self._failure = self._failure or error
            self._stop.set()
        finally:
            with self._lock:
                self._working -= 1
                if self._working == 0:
                    self._done.set()

    @contextmanager
    def _known(self, reader: RangeReader) -> Iterator[None]:
        with self._lock:
            self._readers.append(reader)
        try:
            self._link.ticket.raise_if_cancelled()
            yield
        finally:
            with self._lock:
                self._readers.remove(reader)

    def _next(self) -> ByteRange | None:
        with self._lock:
            return self._todo.popleft() if self._todo and not self._stop.is_set() else None

    def _bring(self, reader: RangeReader, span: ByteRange, buffer: memoryview) -> None:
        """Read a span, or as much of it as comes before the fetch ends, and note that."""
        read = _RangeRead(span.start)
        try:
            self._read(reader, span, buffer, read)
        finally:
            if read.at > span.start:
                self._partial.note(ByteRange(span.start, read.at), read.crc32)

    def _read(
        self, reader: RangeReader, span: ByteRange, buffer: memoryview, read: _RangeRead
    ) -> None:
        failures = 0
        while True:
            begun_at = read.at
            try:
                for chunk in reader.read(read.at, span.end, buffer):
                    self._link.take(len(chunk))
                    self._partial.write(chunk, read.at)
                    read.add(chunk)
                    DOWNLOADED_BYTES.inc(len(chunk))
                    with self._lock:
                        self._brought_bytes += len(chunk)
                    if self._stop.is_set():
                        return
                if read.at >= span.end:
                    return
                broken = BrokenOff("the body was shorter than asked for")
            except BrokenOff as error:
                broken = error
            self._link.ticket.raise_if_cancelled()
            failures = failures + 1 if read.at == begun_at else 1
            if failures >= ATTEMPTS:
                raise StorageFailed(
                    f"{self._what} broke off at byte {read.at} of {self._partial.file.size_bytes},"
                    f" {failures} times in a row: {broken}"
                ) from broken
            RANGE_RETRIES.inc()
            if self._stop.wait(FIRST_PAUSE_S * 2 ** (failures - 1) * random.uniform(0.5, 1.0)):
                return


@dataclass(slots=True)
class _RangeRead:
    """How far one span has come. Mutable: owned by its thread."""

    at: int
    crc32: int = 0

    def add(self, chunk: memoryview) -> None:
        """These bytes are written."""
        self.crc32 = CRC32.update(chunk, self.crc32)
        self.at += len(chunk)
