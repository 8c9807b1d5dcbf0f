"""Downloads the missing ranges of a file in parallel; an interrupted range resumes where it ended.

An object store limits one connection to a fraction of a machine's rate, and its first byte is slow,
so several readers share a file. A reader raises `ReadInterrupted` where another attempt may
succeed; every other error ends the download.
"""

from __future__ import annotations

import random
import threading
import time
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
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import ByteRange, PartialFile

# The download bandwidth of a pod, shared by all its loads: a rate limit and two priorities.
#
# While an urgent load (one that a request waits for) reads bytes, the other loads together may
# read `PRELOAD_SHARE` of the bytes that it reads, with or without a configured rate, so that
# preloads never starve. A preload can become urgent while it runs.


PRELOAD_SHARE = 1 / 16
"""Bytes that preloads may read per byte of urgent downloads."""
MAX_PRELOAD_READERS = 16
"""Maximum connections of all preloads together: those of one load that a request waits for."""
MAX_CREDIT_BYTES = 1024**2
PIECE_S = 0.02
"""Seconds of the configured rate that are granted at once: the longest delay of an urgent download
behind a preload."""
STALL_TIMEOUT_S = 1.0
"""An urgent download that reads nothing for this long no longer delays preloads."""


class Bandwidth:
    """A token bucket over bytes, for threads.

    Each read moves the time at which the link is free again, so that all threads together keep to
    the rate. Up to `burst_s` of unused time can be caught up.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        burst_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._clock = clock
        self._sleep = sleep
        self._rate_lock = threading.Lock()
        self._free_at_s = 0.0
        self._is_closed = False
        self._changed = threading.Condition()
        self._uses: list[BandwidthUse] = []
        self._credit_bytes = 0.0
        self._preload_readers = 0

    def close(self) -> None:
        """End all downloads with StorageFailed, since the pod shuts down."""
        self._is_closed = True
        self._notify()

    @contextmanager
    def use(self, ticket: LoadTicket) -> Iterator[BandwidthUse]:
        use = BandwidthUse(self, ticket, self._clock())
        ticket.add_listener(self._notify)
        with self._changed:
            self._uses.append(use)
        try:
            yield use
        finally:
            ticket.remove_listener(self._notify)
            with self._changed:
                self._uses.remove(use)
                self._changed.notify_all()

    def take(self, use: BandwidthUse, byte_count: int) -> None:
        """Wait until the bytes may be read; raises LoadCancelled, or StorageFailed once closed."""
        max_piece = byte_count
        if self.bytes_per_s is not None:
            max_piece = max(1, int(self.bytes_per_s * PIECE_S))
        while byte_count > 0:
            piece = min(byte_count, max_piece)
            self._wait_for_priority(use, piece)
            self._wait_for_rate(piece)
            use.ticket.has_started = True
            byte_count -= piece

    @contextmanager
    def connection_slot(self, use: BandwidthUse) -> Iterator[None]:
        """A slot for one connection; preloads share `MAX_PRELOAD_READERS` of them."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._must_stop(use)
                    or use.ticket.is_urgent
                    or self._preload_readers < MAX_PRELOAD_READERS
                )
            )
            self._raise_if_stopped(use)
            slots = 0 if use.ticket.is_urgent else 1
            self._preload_readers += slots
        try:
            yield
        finally:
            with self._changed:
                self._preload_readers -= slots
                self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _must_stop(self, use: BandwidthUse) -> bool:
        return self._is_closed or use.ticket.is_cancelled

    def _raise_if_stopped(self, use: BandwidthUse) -> None:
        if self._is_closed:
            raise StorageFailed("the pod shuts down; the next load continues from what it fetched")
        use.ticket.raise_if_cancelled()

    def _wait_for_priority(self, use: BandwidthUse, byte_count: int) -> None:
        """Give urgent downloads priority: their bytes earn the credit that preloads spend."""
        self._raise_if_stopped(use)
        with self._changed:
            use.last_read_s = self._clock()
            if len(self._uses) < 2:
                return
            if use.ticket.is_urgent:
                earned = self._credit_bytes + PRELOAD_SHARE * byte_count
                self._credit_bytes = min(MAX_CREDIT_BYTES, earned)
                self._changed.notify_all()
                return
            price = min(byte_count, MAX_CREDIT_BYTES)
            while not self._may_pass(use, price):
                self._changed.wait(STALL_TIMEOUT_S)
            if self._is_urgent_active():
                self._credit_bytes = max(0.0, self._credit_bytes - price)
        self._raise_if_stopped(use)

    def _may_pass(self, use: BandwidthUse, price: int) -> bool:
        if self._must_stop(use) or use.ticket.is_urgent or self._credit_bytes >= price:
            return True
        return not self._is_urgent_active()

    def _is_urgent_active(self) -> bool:
        """Whether an urgent download has read bytes within `STALL_TIMEOUT_S`."""
        since_s = self._clock() - STALL_TIMEOUT_S
        return any(use.ticket.is_urgent and use.last_read_s > since_s for use in self._uses)

    def _wait_for_rate(self, byte_count: int) -> None:
        if self.bytes_per_s is None:
            return
        with self._rate_lock:
            now_s = self._clock()
            start_s = max(self._free_at_s, now_s - self._burst_s)
            self._free_at_s = start_s + byte_count / self.bytes_per_s
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)


@dataclass(eq=False, slots=True)
class BandwidthUse:
    """The bandwidth for the downloads of one load."""

    shared: Bandwidth
    ticket: LoadTicket
    last_read_s: float
    """Time of the last read, on the clock of the bandwidth."""

    def take(self, byte_count: int) -> None:
        self.shared.take(self, byte_count)

    @contextmanager
    def connection_slot(self) -> Iterator[None]:
        with self.shared.connection_slot(self):
            yield


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
