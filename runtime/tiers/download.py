"""Weights under download: their headers can be read once these have arrived, the rest at the end.

So a network is built, and its memory reserved, while the weights come. `Download` owns file
descriptors of its own, so a file can be read before and after it gets its final name.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import ModelInvalid
from runtime.storage.listing import RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import SPAN_BYTES, ByteRange, PartialFile, split_spans
from runtime.threads import in_thread
from runtime.weights.safetensors_files import read_header_end
from runtime.weights.weight_source import OpenFiles

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class _FileProgress:
    """A file under download. Mutable: guarded by the lock of the download."""

    path: str
    size_bytes: int
    descriptor: int = -1
    arrived: set[int] = field(default_factory=set)
    """Numbers of the spans that have arrived."""
    header_end: int | None = None

    def has_header(self) -> bool:
        if self.header_end is None:
            if not self.size_bytes and self.descriptor >= 0:
                self.header_end = 0
            elif 0 not in self.arrived:
                return False
            else:
                try:
                    self.header_end = read_header_end(self.descriptor, self.path)
                except ModelInvalid:  # raised again by the reader of the header
                    self.header_end = 0
        return all(number in self.arrived for number in range(-(-self.header_end // SPAN_BYTES)))


class Download:
    """The files of one download, in order. Methods may be called from any thread.

    The event loop that has begun it calls `end`.
    """

    def __init__(self, files: Sequence[RemoteFile], ticket: LoadTicket) -> None:
        self.names = tuple(file.path for file in files)
        self.headers: Future[None] = Future()
        """Done when every file's header has arrived, or the download has failed."""
        self._ticket = ticket
        self._files = [_FileProgress(file.path, file.size_bytes) for file in files]
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._is_finished = False
        self._fetching: asyncio.Future[None] | None = None
        ticket.add_listener(self._notify)

    # For the event loop

    def begin(self, fetch: Callable[[Download], object], threads: Executor) -> None:
        """Fetch the files in a thread; `fetch` blocks, and reports to this as they come."""

        def run() -> None:
            try:
                fetch(self)
            except BaseException as error:
                self.fail(error)
                raise

        def on_done(fetching: asyncio.Future[None]) -> None:
            # Also if the fetch never got a thread.
            if not fetching.cancelled() and (error := fetching.exception()) is not None:
                self.fail(error)

        self._fetching = asyncio.get_running_loop().run_in_executor(threads, run)
        self._fetching.add_done_callback(on_done)

    async def weights(self, threads: Executor) -> ArrivingWeights:
        """The weights, once all headers have arrived; raises LoadFailed, LoadCancelled."""
        await asyncio.shield(asyncio.wrap_future(self.headers))
        return await in_thread(threads, ArrivingWeights, self)

    async def end(self) -> None:
        """Cancel an unfinished download, wait for its thread, and close the files."""
        if self._fetching is not None:
            if not self._fetching.done():
                self._ticket.cancel("the load had ended")
            await asyncio.wait({self._fetching})
        self.close()

    def close(self) -> None:
        """Close the files, once download and reader have ended."""
        self._ticket.remove_listener(self._notify)
        for file in self._files:
            if file.descriptor >= 0:
                os.close(file.descriptor)
                file.descriptor = -1

    # For the download

    def follow(self, partial: PartialFile) -> None:
        """Report the complete spans of this file now, and the others when they are complete."""
        index = self.names.index(partial.file.path)
        self._files[index].descriptor = partial.duplicate()
        partial.subscribe(lambda span: self._add(index, [span]))
        self._add(index, partial.complete_spans())

    def add_complete(self, folder: Path) -> None:
        """Report all other files, which are complete in the folder; raises OSError."""
        for index, file in enumerate(self._files):
            if file.descriptor < 0:
                file.descriptor = os.open(folder / file.path, os.O_RDONLY | os.O_CLOEXEC)
                self._add(index, split_spans(file.size_bytes))

    def finish(self) -> None:
        """Report that every file is complete, verified and under its final name."""
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Report that the download has failed; the bytes read so far must not be used."""
        with self._changed:
            if self._failure is None and not self._is_finished:
                self._failure = error
            self._changed.notify_all()
        with suppress(InvalidStateError):
            self.headers.set_exception(error)

    def _add(self, index: int, spans: Sequence[ByteRange]) -> None:
        with self._changed:
            self._files[index].arrived |= {span.start // SPAN_BYTES for span in spans}
            have_headers = all(file.has_header() for file in self._files)
        if have_headers and not self.headers.done():
            with suppress(InvalidStateError):
                self.headers.set_result(None)

    # For the reader

    def descriptors(self) -> list[int]:
        """The open files, once the headers have arrived."""
        return [file.descriptor for file in self._files]

    def wait_finished(self) -> None:
        """Return once every file is verified and under its final name.

        Raises the download's error, or LoadCancelled.
        """
        with self._changed:
            while not self._is_finished:
                if self._failure is not None:
                    raise self._failure
                self._ticket.raise_if_cancelled()
                self._changed.wait()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


class ArrivingWeights(OpenFiles):
    """The safetensors files of a running download, whose headers have all arrived."""

    def __init__(self, download: Download) -> None:
        """Read the headers; raises ModelInvalid."""
        super().__init__(download.names, download.descriptors())
        self._download = download

    def wait_complete(self) -> None:
        self._download.wait_finished()

    def map_tensors(self) -> dict[str, torch.Tensor]:
        self.wait_complete()
        return super().map_tensors()

    def close(self) -> None:
        """Does nothing: `Download` owns the file descriptors."""
