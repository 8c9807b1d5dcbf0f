"""Outputs of workflows' steps that stay at the pod until the run ends, for later steps of the run.

A tensor is found only by its namespace, run and unguessable identity. Thread-safe.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import mmap
import os
import resource
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from common.inference_protocol.tensors import Tensor
from registry.domain.estimates import SHARED_OVER_BYTES
from runtime.metrics import KEPT_TENSOR_BYTES

# Memory that processes of a node share: written by one, mapped read-only where it is used.
#
# The kernel frees it with its last descriptor and mapping, also those of killed processes. Memory
# that nobody uses any more is written again: new pages cost several times as much as a copy.


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


logger = logging.getLogger(__name__)

DEFAULT_TTL_S: Final = 3600.0
"""Time for which a tensor is kept if its run has no deadline."""
EXPIRY_INTERVAL_S: Final = 1.0
MAX_ENDED: Final = 4096
"""Limit of remembered ended runs: enough for minutes."""


@dataclass(frozen=True, slots=True)
class _Kept:
    tensor: Tensor
    expires_s: float
    block: SharedBlock | None
    """The tensor's memory, if other pods of the node may map it."""


class TensorStore:
    """Keeps tensors in at most `budget_bytes` of host memory; others are not kept.

    Unused shared memory counts as well, and is freed once no tensor is kept.
    """

    def __init__(
        self,
        budget_bytes: int,
        now_s: Callable[[], float] = time.monotonic,
        *,
        shares_memory: bool = False,
    ) -> None:
        """`shares_memory`: keep large tensors where other pods of the node can map them."""
        self._ended: dict[tuple[str, str], None] = {}
        """The runs that ended last, in order."""
        self._budget_bytes = budget_bytes
        self._pool = BlockPool(max_blocks()) if shares_memory else None
        self._now_s = now_s
        self._kept: dict[tuple[str, str], dict[str, _Kept]] = {}
        """By namespace and run, then by identity."""
        self._lock = threading.Lock()
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def keep(
        self, namespace: str, run: str, tensor: Tensor, *, expires_s: float | None = None
    ) -> str | None:
        """Keep a numeric tensor until `expires_s`; its identity, or None if there is no room.

        It is copied: it may be a view of a batch, whose memory must not be held.
        """
        now_s = self._now_s()
        expires_s = now_s + DEFAULT_TTL_S if expires_s is None else expires_s
        size = tensor.host_bytes
        with self._lock:
            if (namespace, run) in self._ended:
                return None
            if expires_s <= now_s or self._used_bytes + size > self._budget_bytes:
                return None
            self._add_bytes(size)
        try:
            kept = self._copy(tensor, expires_s)
        except BaseException:
            with self._lock:
                self._add_bytes(-size)
            raise
        identity = secrets.token_hex(16)
        with self._lock:
            self._kept.setdefault((namespace, run), {})[identity] = kept
        return identity

    def find(self, namespace: str, run: str, identity: str) -> Tensor | None:
        """A kept tensor, not a copy; None: not kept here, or not for this namespace and run."""
        kept = self._find(namespace, run, identity)
        return None if kept is None else kept.tensor

    def find_block(self, namespace: str, run: str, identity: str) -> SharedBlock | None:
        """A kept tensor's shared memory; None as well if other pods cannot map it."""
        kept = self._find(namespace, run, identity)
        return None if kept is None else kept.block

    def _find(self, namespace: str, run: str, identity: str) -> _Kept | None:
        with self._lock:
            kept = self._kept.get((namespace, run), {}).get(identity)
        return None if kept is None or kept.expires_s <= self._now_s() else kept

    def drop(self, namespace: str, run: str, identities: Sequence[str] | None = None) -> int:
        """Free tensors of a run; returns their number.

        Without `identities` all, and later ones are not kept: an abandoned attempt may end after
        its run.
        """
        with self._lock:
            if identities is None:
                self._ended[namespace, run] = None
                if len(self._ended) > MAX_ENDED:
                    del self._ended[next(iter(self._ended))]
            kept = self._kept.get((namespace, run), {})
            names = list(kept) if identities is None else identities
            dropped = [name for name in dict.fromkeys(names) if name in kept]
            for name in dropped:
                self._add_bytes(-kept.pop(name).tensor.host_bytes)
            if not kept:
                self._kept.pop((namespace, run), None)
        return len(dropped)

    def drop_expired(self) -> None:
        now_s = self._now_s()
        with self._lock:
            for run, tensors in list(self._kept.items()):
                for identity, kept in list(tensors.items()):
                    if kept.expires_s <= now_s:
                        del tensors[identity]
                        self._add_bytes(-kept.tensor.host_bytes)
                if not tensors:
                    del self._kept[run]
            is_empty = not self._kept
        if self._pool is not None and is_empty:
            self._pool.trim(0)

    async def run(self) -> None:
        """Free tensors whose run has passed its deadline, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            self.drop_expired()

    def _copy(self, tensor: Tensor, expires_s: float) -> _Kept:
        """A read-only copy in host memory; in shared memory if it is large."""
        source, block = tensor.data, None
        if self._pool is not None and tensor.host_bytes > SHARED_OVER_BYTES:
            idle_bytes = self._budget_bytes - self._used_bytes
            try:
                block = self._pool.copy(source, max_idle_bytes=idle_bytes)
            except OSError as error:
                logger.info("a tensor is kept in plain memory", extra={"error": error})
        if block is None:
            data = source.copy()
            data.flags.writeable = False
        else:
            data = block.values
        return _Kept(Tensor(tensor.name, tensor.datatype, data), expires_s, block)

    def _add_bytes(self, size: int) -> None:
        self._used_bytes += size
        KEPT_TENSOR_BYTES.set(self._used_bytes)
