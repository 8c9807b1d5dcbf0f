"""Where the weights of a model are read from: files of tier `disk` or an image of tier `host`."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch

from runtime.errors import ModelInvalid
from runtime.storage.listing import PIPELINE_INDEX, PROGRAM_SUFFIX
from runtime.weights.safetensors_files import StoredTensor, read_tensors
from runtime.weights.slab import SlabLayout, lay_out, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MADV_POPULATE_READ = 22
"""Of Linux; Python has no name for it."""


@dataclass(frozen=True, slots=True)
class SlabPart:
    """Bytes of a slab: `size_bytes` from `offset` on."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a slab that lie in one file."""

    file: int
    file_offset: int
    slab_offset: int
    size_bytes: int


def slab_parts(size_bytes: int, most_bytes: int) -> Iterator[SlabPart]:
    """A slab in parts, in order."""
    for first in range(0, size_bytes, most_bytes):
        yield SlabPart(first, min(most_bytes, size_bytes - first))


class WeightSource(Protocol):
    """The weights of one model, to be mapped or to be read in the order of the slab. Blocks."""

    layout: SlabLayout

    def parts(self, most_bytes: int) -> Iterator[SlabPart]:
        """The whole slab in parts, each once it can be read; raises LoadFailed, LoadCancelled."""

    def wait_verified(self) -> None:
        """Return once what was read is known to be right; raises as `parts` does."""

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, mapped and not copied, once all are here; writing to one changes no file."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the slab's bytes from `offset` on; raises ModelInvalid.

        Bytes between tensors stay as they are. Many threads may read at once.
        """

    def close(self) -> None:
        """Let go of the files; what is mapped stays mapped."""


class DiskWeights:
    """The safetensors files of a model; a tensor that several hold is the last one's."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the files and read their headers; raises ModelInvalid."""
        with ExitStack() as stack:
            descriptors = [_opened(path, stack) for path in paths]
            self._files = OpenFiles([_named(path) for path in paths], descriptors)
            self._open = stack.pop_all()
        self.layout = self._files.layout

    def parts(self, most_bytes: int) -> Iterator[SlabPart]:
        """All of them at once: the files are here."""
        return slab_parts(self.layout.size_bytes, most_bytes)

    def wait_verified(self) -> None:
        """They were checked when they came."""

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors; one whose bytes lie unaligned in its file is copied."""
        return self._files.map_tensors()

    def read_into(self, offset: int, target: memoryview) -> None:
        """Read each tensor's share of `target` from its file."""
        self._files.read_into(offset, target)

    def close(self) -> None:
        """Close the files."""
        self._open.close()


class OpenFiles:
    """Open safetensors files whose headers are here, seen as one slab."""

    def __init__(self, names: Sequence[str], descriptors: Sequence[int]) -> None:
        """Read the headers; raises ModelInvalid. The caller closes the descriptors."""
        self._names = tuple(names)
        self._descriptors = tuple(descriptors)
        self._found: dict[str, tuple[int, StoredTensor]] = {
            tensor.name: (index, tensor)
            for index, (name, descriptor) in enumerate(zip(names, descriptors, strict=True))
            for tensor in _of_part(name, read_tensors(descriptor, name))
        }
        self.layout = lay_out([tensor for _, tensor in self._found.values()])
        self._starts = [tensor.offset for tensor in self.layout.tensors]

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors; one whose bytes lie unaligned in its file is copied."""
        ends = [0] * len(self._names)
        for index, tensor in self._found.values():
            ends[index] = max(ends[index], tensor.offset + tensor.size_bytes)
        regions = [
            map_file(descriptor, end, name=name)
            for descriptor, end, name in zip(self._descriptors, ends, self._names, strict=True)
        ]
        for region, name in zip(regions, self._names, strict=True):
            touch_pages(region, name=name)
        return {
            name: view_of(regions[index], tensor) for name, (index, tensor) in self._found.items()
        }

    def read_into(self, offset: int, target: memoryview) -> None:
        """Read each tensor's share of `target` from its file."""
        for piece in self.pieces(offset, len(target)):
            first = piece.slab_offset - offset
            read_exactly(
                self._descriptors[piece.file],
                piece.file_offset,
                target[first : first + piece.size_bytes],
                name=self._names[piece.file],
            )

    def pieces(self, offset: int, size_bytes: int) -> Iterator[FilePiece]:
        """Where the slab's bytes from `offset` on lie, without those between tensors."""
        end = offset + size_bytes
        for placed in self.layout.tensors[max(0, bisect_right(self._starts, offset) - 1) :]:
            if placed.offset >= end:
                return
            first = max(offset, placed.offset)
            last = min(end, placed.offset + placed.size_bytes)
            if first >= last:
                continue
            index, stored = self._found[placed.name]
            yield FilePiece(index, stored.offset + first - placed.offset, first, last - first)


def _named(path: Path) -> str:
    """A file's name, after its folder's where that is a part of a pipeline."""
    is_part = (path.parent.parent / PIPELINE_INDEX).exists()
    return f"{path.parent.name}/{path.name}" if is_part else path.name


def _of_part(file: str, tensors: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """The parts of a pipeline, a folder each, have weights of the same names."""
    part = "" if file.endswith(PROGRAM_SUFFIX) else file.rpartition("/")[0]
    return [replace(each, name=f"{part}/{each.name}") for each in tensors] if part else tensors


def map_file(descriptor: int, size_bytes: int, *, name: str) -> torch.Tensor:
    """A file's first bytes as a uint8 tensor; raises ModelInvalid where it has fewer by now.

    The mapping, and a lock of the descriptor, live as long as the tensor and its views.
    """
    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        # Private: who writes to a tensor changes a page of his own, never the file.
        mapping = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_COPY)
    except ValueError as error:
        raise ModelInvalid(f"{name} was cut short: it had {size_bytes} bytes") from error
    return torch.frombuffer(mapping, dtype=torch.uint8)


def touch_pages(region: torch.Tensor, *, name: str) -> None:
    """Bring in all pages of a mapping, in order; raises ModelInvalid where some are gone.

    One call for all costs half of what the first inference would pay, fault by fault (T5-base in
    memory: 45 ms against 90), and less than half where they come from disk. A page that was cut
    off, or cannot be read, is an error here and not a fatal signal.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if region.nbytes and libc.madvise(region.data_ptr(), region.nbytes, MADV_POPULATE_READ):
        number = ctypes.get_errno()
        if number != errno.EINVAL:  # a kernel before 5.14: inference touches them
            raise ModelInvalid(f"{name} cannot be mapped whole: {os.strerror(number)}")


def read_exactly(descriptor: int, offset: int, target: memoryview, *, name: str) -> None:
    """Fill `target` from a file; raises ModelInvalid where it ends early or cannot be read."""
    done = 0
    while done < len(target):
        try:
            count = os.preadv(descriptor, [target[done:]], offset + done)
        except OSError as error:
            raise ModelInvalid(f"{name} cannot be read: {error}") from error
        if count == 0:
            raise ModelInvalid(
                f"{name} was cut short while it was read: {len(target)} bytes were expected"
                f" at {offset}, {done} are there"
            )
        done += count


def _opened(path: Path, stack: ExitStack) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelInvalid(f"{path.name} cannot be read: {error}") from error
    stack.callback(os.close, descriptor)
    # Reading begins now and goes on while other things are made ready.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    return descriptor
