"""Which bytes of a model's weights are here while they are fetched.

The fetch tells, and who reads the weights waits. A span that has arrived is in the file and stays
as it is; whether the file as a whole is what its source says, is known only at the end. Descriptors
belong to the arrivals, so that a file can be read before and after it has its name.
"""

from __future__ import annotations

import os
import struct
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.storage.partial_file import SPAN_BYTES, split_spans
from runtime.weights.safetensors_files import HEADER_LENGTH_BYTES, MOST_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from runtime.storage.listing import RemoteFile
    from runtime.storage.load_ticket import LoadTicket
    from runtime.storage.partial_file import ByteRange, PartialFile


@dataclass(frozen=True, slots=True, order=True)
class ArrivedSpan:
    """One span: of which file, and the how-manieth."""

    file: int
    number: int


@dataclass(slots=True)
class _FileProgress:
    """A file on its way. Mutable: guarded by the arrivals' lock."""

    size_bytes: int
    descriptor: int = -1
    numbers: set[int] = field(default_factory=set)
    header_end: int | None = None


class DownloadProgress:
    """The files of one fetch, in order. Methods may be called from any thread."""

    def __init__(self, files: Sequence[RemoteFile], ticket: LoadTicket) -> None:
        self.names = tuple(file.path for file in files)
        self.headers: Future[None] = Future()
        """Done when every file's header is here, or the fetch has failed."""
        self._ticket = ticket
        self._files = [_FileProgress(file.size_bytes) for file in files]
        self._index = {file.path: index for index, file in enumerate(files)}
        self._changed = threading.Condition()
        self._log: list[ArrivedSpan] = []
        self._failure: BaseException | None = None
        self._is_over = False
        ticket.add_listener(self._look)

    def close(self) -> None:
        """Close the files, once nobody reads or fetches."""
        self._ticket.remove_listener(self._look)
        for file in self._files:
            if file.descriptor >= 0:
                os.close(file.descriptor)
                file.descriptor = -1

    # The fetch tells

    def watch(self, partial: PartialFile) -> None:
        """Spans of this file arrive from now on; some may be here."""
        index = self._index[partial.file.path]
        self._files[index].descriptor = partial.duplicate()
        partial.subscribe(lambda span: self._note(index, [span]))
        self._note(index, partial.complete_spans())

    def whole(self, folder: Path) -> None:
        """All files that are not watched are in the folder, whole; raises OSError."""
        for index, name in enumerate(self.names):
            file = self._files[index]
            if file.descriptor < 0:
                file.descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
                self._note(index, split_spans(file.size_bytes))

    def finish(self) -> None:
        """Every file is whole, checked and in its place."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The fetch has ended without; what was read counts for nothing."""
        with self._changed:
            if self._failure is None and not self._is_over:
                self._failure = error
            self._changed.notify_all()
        with suppress(InvalidStateError):
            self.headers.set_exception(error)

    def _note(self, index: int, spans: Sequence[ByteRange]) -> None:
        with self._changed:
            file = self._files[index]
            for span in spans:
                number = span.start // SPAN_BYTES
                file.numbers.add(number)
                self._log.append(ArrivedSpan(index, number))
            are_known = all(_has_header(each) for each in self._files)
            self._changed.notify_all()
        if are_known and not self.headers.done():
            with suppress(InvalidStateError):
                self.headers.set_result(None)

    # Who reads asks

    def descriptors(self) -> list[int]:
        """The open files, once the headers are here."""
        return [file.descriptor for file in self._files]

    def spans(self) -> Iterator[ArrivedSpan]:
        """All spans as they arrive; raises why the fetch failed, or LoadCancelled."""
        total = sum(-(-file.size_bytes // SPAN_BYTES) for file in self._files)
        for at in range(total):
            with self._changed:
                while len(self._log) <= at and not self._must_end():
                    self._changed.wait()
                self._check()
                arrived = self._log[at]
            yield arrived

    def wait_over(self) -> None:
        """Return once every file is checked and in its place; raises as `spans` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._must_end())
            if not self._is_over:
                self._check()

    def _must_end(self) -> bool:
        return self._failure is not None or self._ticket.is_cancelled

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._ticket.raise_if_cancelled()

    def _look(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _has_header(file: _FileProgress) -> bool:
    """Whether all bytes of the header are here; a length that cannot be is left to its reader."""
    if file.header_end is None:
        if not file.size_bytes and file.descriptor >= 0:
            file.header_end = 0
        elif 0 not in file.numbers:
            return False
        else:
            file.header_end = _header_end(file)
    return all(number in file.numbers for number in range(-(-file.header_end // SPAN_BYTES)))


def _header_end(file: _FileProgress) -> int:
    prefix = os.pread(file.descriptor, HEADER_LENGTH_BYTES, 0)
    if len(prefix) < HEADER_LENGTH_BYTES:
        return 0
    (length,) = struct.unpack("<Q", prefix)
    if length > min(MOST_HEADER_BYTES, file.size_bytes - HEADER_LENGTH_BYTES):
        return 0
    return HEADER_LENGTH_BYTES + int(length)
