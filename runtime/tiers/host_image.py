"""The image file of one model in tier `host`: a header, then the slab in its layout on a device.

Layout: magic (8 bytes), length of the description (8, little endian), its SHA-256 (32), the
description in JSON (size of the slab, tensors), zeros up to a page boundary, the slab.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from runtime.weights.safetensors_files import SlabLayout, StoredTensor, aligned, view_of
from runtime.weights.weight_source import (
    WeightSource,
    map_file,
    map_shared,
    read_exactly,
    touch_pages,
)

MAGIC = b"PLSLAB01"
HEAD = struct.Struct("<8sQ32s")
MAX_DESCRIPTION_BYTES = 64 * 1024**2
CHUNK_BYTES = 16 * 1024**2


class ImageDamaged(Exception):
    """An image differs from what was written; it is deleted, and the model is read from disk."""


class HostImage(WeightSource):
    """An open, complete image. Its descriptor's lock lasts until its last tensor is released."""

    def __init__(self, descriptor: int, name: str) -> None:
        """Take over the descriptor and check the file; raises ImageDamaged."""
        self._descriptor = descriptor
        self.image_name = name
        self.layout, self._slab_offset = _read_header(descriptor, name)

    def map_shared(self) -> torch.Tensor:
        """The slab, mapped for a device to read; a write to it is a fatal signal."""
        end = self._slab_offset + self.layout.size_bytes
        return map_shared(self._descriptor, end, name=self.image_name)[self._slab_offset :]

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, mapped, so that the pods of a node share the memory."""
        end = self._slab_offset + self.layout.size_bytes
        whole = map_file(self._descriptor, end, name=self.image_name)
        touch_pages(whole, name=self.image_name)
        slab = whole[self._slab_offset :]
        return {tensor.name: view_of(slab, tensor) for tensor in self.layout.tensors}

    def read_into(self, offset: int, target: memoryview) -> None:
        read_exactly(self._descriptor, self._slab_offset + offset, target, name=self.image_name)

    def close(self) -> None:
        """Close the file; a mapping has its own descriptor with the same lock."""
        os.close(self._descriptor)


def image_bytes(layout: SlabLayout) -> int:
    return len(_header(layout)) + layout.size_bytes


def write_image(
    descriptor: int,
    source: WeightSource,
    should_stop: Callable[[], bool] = lambda: False,
    writers: int = 1,
) -> bool:
    """Write the whole image with several threads; False if stopped. Raises OSError, ModelInvalid.

    Writes with `pwrite`, never through a mapping, where a full file system would be a fatal signal.
    """
    header = _header(source.layout)
    _write_exactly(descriptor, memoryview(header), 0)
    size_bytes = source.layout.size_bytes
    chunks = iter(range(0, size_bytes, CHUNK_BYTES))
    lock, failed = threading.Lock(), threading.Event()

    def write_chunks() -> bool:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, size_bytes)))
        while not failed.is_set():
            with lock:
                first = next(chunks, None)
            if first is None:
                return True
            if should_stop():
                failed.set()
                return False
            try:
                chunk = buffer[: size_bytes - first]
                source.read_into(first, chunk)
                _write_exactly(descriptor, chunk, len(header) + first)
            except BaseException:
                failed.set()
                raise
        return False

    with ThreadPoolExecutor(writers, "host-image") as threads:
        results = [threads.submit(write_chunks) for _ in range(writers)]
    outcomes = [each.result() for each in results]  # raises the error of any
    return all(outcomes)


def _header(layout: SlabLayout) -> bytes:
    rows = [
        [tensor.name, tensor.dtype, tensor.shape, tensor.offset, tensor.size_bytes]
        for tensor in layout.tensors
    ]
    text = json.dumps({"size_bytes": layout.size_bytes, "tensors": rows}).encode()
    head = HEAD.pack(MAGIC, len(text), hashlib.sha256(text).digest()) + text
    return head.ljust(aligned(len(head), mmap.PAGESIZE), b"\0")


def _read_header(descriptor: int, name: str) -> tuple[SlabLayout, int]:
    """The layout and the slab's offset, checked on the open file, so that no rename interferes."""
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, HEAD.size, 0)
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise ImageDamaged(f"{name} ({size} bytes) does not begin like an image")
    _, length, digest = HEAD.unpack(head)
    if length > min(MAX_DESCRIPTION_BYTES, size):
        raise ImageDamaged(f"{name} has {size} bytes, its description alone {length}")
    text = os.pread(descriptor, length, HEAD.size)
    if hashlib.sha256(text).digest() != digest:
        raise ImageDamaged(f"the description of {name} does not have its checksum")
    fields = json.loads(text)
    tensors = tuple(
        StoredTensor(name, dtype, tuple(shape), offset, size_bytes)
        for name, dtype, shape, offset, size_bytes in fields["tensors"]
    )
    layout = SlabLayout(tensors, fields["size_bytes"])
    slab_offset = aligned(HEAD.size + length, mmap.PAGESIZE)
    written = slab_offset + layout.size_bytes
    if written != size:
        raise ImageDamaged(f"{name} has {size} bytes, {written} were written")
    return layout, slab_offset


def _write_exactly(descriptor: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)
