"""Readers of a model's weights as one slab: safetensors, an exported program, or whole files."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from runtime.errors import ModelInvalid
from runtime.storage.listing import PIPELINE_INDEX, PROGRAM_SUFFIX, WEIGHT_SUFFIX, RemoteFile
from runtime.weights.safetensors_files import (
    SlabLayout,
    StoredTensor,
    lay_out,
    read_tensors,
    view_of,
)

READ_AHEAD_BYTES = 512 * 1024
"""Of one call: Linux cuts longer ones to what the disk reads at once, and drops the rest."""
MADV_POPULATE_READ = 22
"""Linux constant (madvise(2)) that Python's `mmap` module lacks."""


class WeightSource:
    """The weights of one model, to be mapped or to be read in the order of the slab. Blocks.

    As it is here: complete and verified weights of no image, in no file that is open.
    """

    layout: SlabLayout
    image_name = ""
    """Of a file in memory that holds the slab as it is on a device; empty: there is none."""

    def wait_complete(self) -> None:
        """Return once all bytes are here and verified; raises LoadFailed, LoadCancelled.

        Before each reading of the whole.
        """

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, mapped and not copied, once complete; a write to one changes no file."""
        return {}

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the slab's bytes from `offset` on; raises ModelInvalid.

        Bytes between tensors are left unchanged. Many threads may read at once.
        """
        raise NotImplementedError

    def map_shared(self) -> torch.Tensor:
        """The whole slab of an image, mapped to be read alone."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the files; mapped tensors stay valid."""


class DiskWeights(WeightSource):
    """The files of a model's weights on disk, all complete, as one slab.

    If several files of safetensors hold a tensor of one name, that of the last file is used.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the files and read their headers; raises ModelInvalid."""
        with ExitStack() as stack:
            self._files = [(_open(path, stack), _name(path, paths[0].parent)) for path in paths]
            self._stored: dict[str, tuple[int, StoredTensor]] = {
                tensor.name: (index, tensor)
                for index, file in enumerate(self._files)
                for tensor in stored_tensors(*file)
            }
            self.layout = lay_out([tensor for _, tensor in self._stored.values()])
            self._open_files = stack.pop_all()
        self._starts = [tensor.offset for tensor in self.layout.tensors]

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, mapped; a tensor that is not aligned in its file is copied."""
        ends = [0] * len(self._files)
        for index, tensor in self._stored.values():
            ends[index] = max(ends[index], tensor.offset + tensor.size_bytes)
        regions = [
            map_file(descriptor, end, name=name)
            for (descriptor, name), end in zip(self._files, ends, strict=True)
        ]
        for region, (descriptor, name) in zip(regions, self._files, strict=True):
            if not _read_cached(descriptor, region.nbytes // 2, memoryview(bytearray(1))):
                read_ahead(descriptor, 0, region.nbytes)
            touch_pages(region, name=name)
        return {
            name: view_of(regions[index], tensor) for name, (index, tensor) in self._stored.items()
        }

    def read_into(self, offset: int, target: memoryview) -> None:
        end = offset + len(target)
        for placed in self.layout.tensors[max(0, bisect_right(self._starts, offset) - 1) :]:
            if placed.offset >= end:
                return
            first = max(offset, placed.offset)
            last = min(end, placed.offset + placed.size_bytes)
            if first < last:
                index, stored = self._stored[placed.name]
                descriptor, name = self._files[index]
                begin = stored.offset + first - placed.offset
                read_exactly(descriptor, begin, target[first - offset : last - offset], name=name)

    def drop_cached(self) -> None:
        """Free the memory of the files' pages, unless a process has mapped them."""
        for descriptor, _ in self._files:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._open_files.close()


class ArrivingWeights(WeightSource):
    """Weights whose headers were read at their source, while a thread fetches the files."""

    def __init__(self, tensors: Iterable[StoredTensor], fetching: Future[DiskWeights]) -> None:
        """`fetching`: raises LoadFailed, LoadCancelled; whoever has begun it closes the files."""
        self.layout = lay_out(list({tensor.name: tensor for tensor in tensors}.values()))
        self._fetching = fetching

    def wait_complete(self) -> None:
        self._fetching.result()

    def map_tensors(self) -> dict[str, torch.Tensor]:
        return self._fetching.result().map_tensors()

    def read_into(self, offset: int, target: memoryview) -> None:
        self._fetching.result().read_into(offset, target)


class UnreadFiles(WeightSource):
    """A model's files for a server that reads them by itself: their sizes, and no bytes."""

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        sizes = [(file.path, file.size_bytes) for file in files]
        self.layout = lay_out([StoredTensor(name, "U8", (size,), 0, size) for name, size in sizes])


def _name(path: Path, folder: Path) -> str:
    """A file's name, preceded by its folder's name if the folder is a component of a pipeline.

    The path below `folder`, which holds a library's model, for the files that belong to the model:
    subfolders may have files of equal names.
    """
    if not path.name.endswith((WEIGHT_SUFFIX, PROGRAM_SUFFIX)) and path.is_relative_to(folder):
        return str(path.relative_to(folder))
    is_part = (path.parent.parent / PIPELINE_INDEX).exists()
    return f"{path.parent.name}/{path.name}" if is_part else path.name


def stored_tensors(descriptor: int, file: str) -> Sequence[StoredTensor]:
    """The tensors of a file; a pipeline's component prefixes its tensors with its own name.

    Components of a pipeline, each in its own folder, may have tensors of equal names.
    """
    if file.endswith(PROGRAM_SUFFIX):
        from runtime.weights.archive import tensors_of_program  # optional format

        return tensors_of_program(Path(f"/proc/self/fd/{descriptor}"), file)
    if not file.endswith(WEIGHT_SUFFIX):  # a library reads the whole file
        size_bytes = os.fstat(descriptor).st_size
        return [StoredTensor(file, "U8", (size_bytes,), 0, size_bytes)]
    part, tensors = file.rpartition("/")[0], read_tensors(descriptor, file)
    return [replace(each, name=f"{part}/{each.name}") for each in tensors] if part else tensors


def map_file(descriptor: int, size_bytes: int, *, name: str) -> torch.Tensor:
    """A file's first bytes as a uint8 tensor; raises ModelInvalid if the file has fewer by now.

    The mapping, and a lock of the descriptor, last as long as the tensor and its views.
    """
    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    # Private: a write to a tensor changes a copy of the page, never the file.
    mapping = _mapped(descriptor, size_bytes, mmap.ACCESS_COPY, name)
    return torch.frombuffer(mapping, dtype=torch.uint8)


def map_shared(descriptor: int, size_bytes: int, *, name: str) -> torch.Tensor:
    """As `map_file`, but shared and read-only: a driver that pins the pages copies none of them.

    Of a private mapping it would make copies of all pages, as for a write.
    """
    mapping = _mapped(descriptor, size_bytes, mmap.ACCESS_READ, name)
    # By its address: torch makes no tensor of a buffer that may not be written.
    pages = (ctypes.c_uint8 * size_bytes).from_address(np.frombuffer(mapping, "u1").ctypes.data)
    pages.mapping = mapping  # type: ignore[attr-defined]  # lives as long as the tensor
    return torch.frombuffer(pages, dtype=torch.uint8)


def _mapped(descriptor: int, size_bytes: int, access: int, name: str) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, size_bytes, access=access)
    except ValueError as error:
        raise ModelInvalid(f"{name} was cut short: it had {size_bytes} bytes") from error


def touch_pages(region: torch.Tensor, *, name: str) -> None:
    """Read all pages of a mapping, in order; raises ModelInvalid if some are missing.

    One call for all pages takes half the time of the page faults of a first inference (T5-base in
    memory: 45 ms against 90 ms), and less than half if the pages come from disk. A missing or
    unreadable page raises an error here, and a fatal signal (SIGBUS) in an inference.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if region.nbytes and libc.madvise(region.data_ptr(), region.nbytes, MADV_POPULATE_READ):
        number = ctypes.get_errno()
        if number != errno.EINVAL:  # a kernel before 5.14: inference reads the pages
            raise ModelInvalid(f"{name} cannot be mapped whole: {os.strerror(number)}")


def read_ahead(descriptor: int, offset: int, size_bytes: int) -> None:
    """Start to read a range of a file into memory, all parts at once; does not wait for them.

    A thread that reads in order has one or two small reads under way.
    """
    for begin in range(offset, offset + size_bytes, READ_AHEAD_BYTES):
        os.posix_fadvise(descriptor, begin, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)


def _read_cached(descriptor: int, offset: int, target: memoryview) -> int:
    """Fill the beginning of `target` with what is in memory; returns its length."""
    try:
        return os.preadv(descriptor, [target], offset, os.RWF_NOWAIT)
    except OSError:  # nothing is there, or the file system cannot tell
        return 0


def read_exactly(descriptor: int, offset: int, target: memoryview, *, name: str) -> None:
    """Fill `target` from a file; raises ModelInvalid if it ends early or cannot be read."""
    done = _read_cached(descriptor, offset, target)
    if done < len(target):
        read_ahead(descriptor, offset + done, len(target) - done)
    while done < len(target):
        try:
            count = os.preadv(descriptor, [target[done:]], offset + done)
        except OSError as error:
            raise ModelInvalid(f"{name} cannot be read: {error}") from error
        if count == 0:
            raise ModelInvalid(
                f"{name} was cut short while it was read: expected {len(target)} bytes"
                f" at {offset}, found {done}"
            )
        done += count


def _open(path: Path, stack: ExitStack) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelInvalid(f"{path.name} cannot be read: {error}") from error
    stack.callback(os.close, descriptor)
    return descriptor
