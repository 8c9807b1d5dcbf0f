"""Downloads the missing ranges of a file in parallel; an interrupted range resumes where it ended.

An object store limits one connection to a fraction of a machine's rate, and its first byte is slow,
so the readers are doubled until they reach the link's rate. Where the CPU is the limit, more
readers only add thread switches, so the number of readers stays. A reader raises `ReadInterrupted`
where another attempt may succeed; every other error ends the download.
"""

from __future__ import annotations

import random
import threading
import time
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
from runtime.storage.partial_file import CRC32, SPAN_BYTES, ByteRange, PartialFile

MAX_READERS = 16
INITIAL_READERS = 2
FAST_BYTES_PER_S = 250 * 1024**2
"""No readers are added at this throughput per reader."""
LINK_SHARE = 0.75
"""Share of the link's configured rate above which the link is the limit, not the store."""
MIN_GAIN = 0.5
"""Minimum gain in throughput, as a share of linear scaling, for which more readers are added."""
POLL_INTERVAL_S = 0.025
"""Between measurements of the throughput: a fraction of a store's time to the first byte."""
CHUNK_BYTES = 256 * 1024
"""Longer writes save CPU time where the page cache reuses memory, and cost more where a virtual
machine must first get the memory from its host."""
MAX_ATTEMPTS = 6
"""Attempts in a row that may return no byte; the pauses between them add up to 3 s."""
_BACKOFF = Backoff(initial_s=0.1)


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Throughput of a number of readers together."""

    readers: int
    bytes_per_s: float


def additional_readers(
    now: ReadRate, before: ReadRate | None, link_bytes_per_s: float | None
) -> int:
    """Number of readers to add. `before` is the rate before the last readers were added, if any."""
    enough: float = FAST_BYTES_PER_S * now.readers
    if link_bytes_per_s is not None:
        enough = min(enough, LINK_SHARE * link_bytes_per_s)
    if now.bytes_per_s >= enough:
        return 0
    if before is not None:
        growth = now.readers / before.readers - 1
        if now.bytes_per_s < before.bytes_per_s * (1 + MIN_GAIN * growth):
            return 0
    return max(0, min(now.readers, MAX_READERS - now.readers))


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
    head_only: bool = False,
) -> None:
    """Download every missing range of `partial`, or with `head_only` those of its first span.

    Raises LoadFailed (with `name` in the message), LoadCancelled, and OSError on a write error.

    Args:
        open_reader: opens a reader of the file for one thread.
        partial: receives the bytes.
        bandwidth: limits the rate; its ticket cancels the download.
        name: of the file, for errors.
        head_only: whether the first span is enough.
    """
    missing = [
        span for span in partial.missing_ranges() if span.start < SPAN_BYTES or not head_only
    ]
    if missing:
        _RangedDownload(open_reader, partial, bandwidth, name, deque(missing)).run()


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
    _workers: int = 0
    _downloaded_bytes: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None

    def run(self) -> None:
        self.bandwidth.ticket.add_listener(self._abort_if_cancelled)
        try:
            self._run_workers()
        finally:
            self.bandwidth.ticket.remove_listener(self._abort_if_cancelled)
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its traceback holds this, and the buffers of a worker

    def _run_workers(self) -> None:
        if len(self.pending) <= 1:
            self._workers = 1
            self._work()
        else:
            with ThreadPoolExecutor(min(MAX_READERS, len(self.pending)), "ranges") as pool:
                self._start_workers(pool, INITIAL_READERS)
                self._add_workers_while_faster(pool)

    def _abort_if_cancelled(self) -> None:
        """Abort all reads of a cancelled load, so that it does not wait for responses."""
        if self.bandwidth.ticket.is_cancelled:
            with self._lock:
                readers = list(self._readers)
            for reader in readers:
                reader.abort()

    def _add_workers_while_faster(self, pool: ThreadPoolExecutor) -> None:
        """Add readers while they raise the throughput; returns once no worker runs."""
        since_s, since_bytes, before = time.monotonic(), 0, None
        while not self._done.wait(POLL_INTERVAL_S):
            now_s = time.monotonic()
            with self._lock:
                readers, downloaded = self._workers, self._downloaded_bytes
            if not readers:
                continue
            now = ReadRate(readers, (downloaded - since_bytes) / (now_s - since_s))
            if more := additional_readers(now, before, self.bandwidth.shared.bytes_per_s):
                self._start_workers(pool, more)
                since_s, since_bytes, before = now_s, downloaded, now

    def _start_workers(self, pool: ThreadPoolExecutor, count: int) -> None:
        for _ in range(count):
            with self._lock:
                if not self.pending:
                    return
                self._workers += 1
            pool.submit(self._work)

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
        finally:
            with self._lock:
                self._workers -= 1
                if self._workers == 0:
                    self._done.set()

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
                    progress.crc32 = CRC32.update(chunk, progress.crc32)
                    progress.at += len(chunk)
                    DOWNLOADED_BYTES.inc(len(chunk))
                    with self._lock:
                        self._downloaded_bytes += len(chunk)
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
