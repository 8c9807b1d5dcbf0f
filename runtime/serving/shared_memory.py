"""Memory that processes of a node share: written by one, mapped read-only where it is used.

The kernel frees it with its last descriptor and mapping, also those of killed processes. Memory
that nobody uses any more is written again: new pages cost several times as much as a copy.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

F_SEAL_FUTURE_WRITE: Final = 0x10
"""Linux constant (fcntl(2), 5.1) that Python lacks: only mappings made before can write."""
_SEALS: Final = F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NAME: Final = "pilotlight-tensor"
MAX_BLOCKS: Final = 512
_DESCRIPTORS_PER_BLOCK: Final = 2
"""The block's, and its mapping's."""


class _Memory:
    """Sealed memory of one size, which only this process can write."""

    def __init__(self, size_bytes: int) -> None:
        """Raises OSError if there is no memory or descriptor."""
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.descriptor)
        # Allocate all memory now: a hole would kill its writer when memory runs out.
        os.posix_fallocate(self.descriptor, 0, size_bytes)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self.mapping = mmap.mmap(self.descriptor, size_bytes, flags=flags)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)


class SharedBlock:
    """An array in shared memory, and the descriptor to map it elsewhere.

    The memory is not written again while `values`, or an array or tensor made of it, exists.
    """

    def __init__(
        self, memory: _Memory, shape: tuple[int, ...], dtype: np.dtype[Any], unused: deque[_Memory]
    ) -> None:
        self.descriptor = memory.descriptor
        root = np.frombuffer(memory.mapping, np.uint8)
        root.flags.writeable = False
        weakref.finalize(root, unused.append, memory).atexit = False
        self.values: npt.NDArray[Any] = root.view(dtype).reshape(shape)


class BlockPool:
    """Blocks of one process, at most `max_blocks` of them. Thread-safe."""

    def __init__(self, max_blocks: int) -> None:
        self._blocks_left = max_blocks
        self._unused: deque[_Memory] = deque()
        """Appended to by finalizers, which run at any point and take no lock."""
        self._idle: list[_Memory] = []
        """To be written again, the oldest first."""
        self._lock = threading.Lock()

    def copy(self, values: npt.NDArray[Any], *, max_idle_bytes: int) -> SharedBlock:
        """A block with a copy. Raises OSError if there is no memory or descriptor."""
        memory = self._take(values.nbytes)
        self.trim(max_idle_bytes)
        if memory is None:
            memory = self._make(values.nbytes)
        np.copyto(np.frombuffer(memory.mapping, values.dtype).reshape(values.shape), values)
        return SharedBlock(memory, values.shape, values.dtype, self._unused)

    def trim(self, max_idle_bytes: int) -> None:
        """Give memory back that is not used, until no more than this is left."""
        with self._lock:
            self._collect()
            idle_bytes = sum(each.size_bytes for each in self._idle)
            while idle_bytes > max_idle_bytes:
                idle_bytes -= self._idle.pop(0).size_bytes
                self._blocks_left += 1

    def _take(self, size_bytes: int) -> _Memory | None:
        with self._lock:
            self._collect()
            for index, memory in enumerate(self._idle):
                if memory.size_bytes == size_bytes:
                    return self._idle.pop(index)
            if not self._blocks_left and self._idle:
                self._idle.pop(0)
                self._blocks_left += 1
        return None

    def _make(self, size_bytes: int) -> _Memory:
        with self._lock:
            if not self._blocks_left:
                raise OSError(errno.EMFILE, "as many blocks are in use as there may be")
            self._blocks_left -= 1
        try:
            return _Memory(size_bytes)
        except BaseException:
            with self._lock:
                self._blocks_left += 1
            raise

    def _collect(self) -> None:
        while self._unused:
            self._idle.append(self._unused.popleft())


class MappedBlock(mmap.mmap):
    """Another process's block, read-only, with all pages in place."""

    lease: object
    """Tells the other process that the block is in use, as long as it exists."""


def map_block(descriptor: int) -> MappedBlock:
    """Raises OSError.

    An unsealed file is refused: it could be cut short, which is a fatal signal to its readers.
    """
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if seals & _SEALS != _SEALS:
        raise PermissionError(f"a block must have the seals {_SEALS:#x}, has {seals:#x}")
    size = os.fstat(descriptor).st_size
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return MappedBlock(descriptor, size, flags=flags, prot=mmap.PROT_READ)


def max_blocks() -> int:
    """Blocks that take a quarter of the process's descriptors at most."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MAX_BLOCKS, limit // (4 * _DESCRIPTORS_PER_BLOCK))
