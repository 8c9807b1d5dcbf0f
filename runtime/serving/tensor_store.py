"""Outputs of steps that stay at the pod until the run ends, for other steps of the same run.

A tensor is found only by its namespace, run and unguessable identity. Thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from registry.domain.transfers import SHARED_OVER_BYTES
from runtime.metrics import KEPT_TENSOR_BYTES
from runtime.serving.shared_block import BlockPool, SharedBlock, max_blocks
from runtime.wire.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

logger = logging.getLogger(__name__)

LONGEST_S: Final = 3600.0
"""Of a tensor whose run has no deadline."""
CHECKED_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Kept:
    tensor: Tensor
    expires_s: float
    block: SharedBlock | None
    """The tensor's memory, if other pods of the node may map it."""


class TensorStore:
    """At most `budget_bytes` of host memory; what does not fit is not kept.

    Shared memory that no tensor uses any more counts as well, and goes back once none is kept.
    """

    def __init__(
        self,
        budget_bytes: int,
        now_s: Callable[[], float] = time.monotonic,
        *,
        shares_memory: bool = False,
    ) -> None:
        """`shares_memory`: whether large tensors are kept where other pods can map them."""
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
        """Keep a tensor of numbers until its time; its identity, or None if there is no room.

        The tensor may be a part of a batch, whose memory is not to be held: that part is copied.
        """
        now_s = self._now_s()
        expires_s = now_s + LONGEST_S if expires_s is None else expires_s
        size = tensor.data.nbytes
        with self._lock:
            if expires_s <= now_s or self._used_bytes + size > self._budget_bytes:
                return None
            self._add_bytes(size)
        try:
            block = self._share(tensor.data)
            data = _copied(tensor.data) if block is None else block.values
        except BaseException:
            with self._lock:
                self._add_bytes(-size)
            raise
        identity = secrets.token_hex(16)
        kept = _Kept(Tensor(tensor.name, tensor.datatype, data), expires_s, block)
        with self._lock:
            self._kept.setdefault((namespace, run), {})[identity] = kept
        return identity

    def find(self, namespace: str, run: str, identity: str) -> Tensor | None:
        """A kept tensor, not a copy; None: not kept here, or not for this namespace and run."""
        kept = self._find(namespace, run, identity)
        return None if kept is None else kept.tensor

    def find_block(self, namespace: str, run: str, identity: str) -> SharedBlock | None:
        """A kept tensor's memory; None as well if it cannot be mapped by other pods."""
        kept = self._find(namespace, run, identity)
        return None if kept is None else kept.block

    def _find(self, namespace: str, run: str, identity: str) -> _Kept | None:
        with self._lock:
            kept = self._kept.get((namespace, run), {}).get(identity)
        return None if kept is None or kept.expires_s <= self._now_s() else kept

    def drop(self, namespace: str, run: str, identities: Sequence[str] | None = None) -> int:
        """Free tensors of a run, by default all; returns their number."""
        with self._lock:
            kept = self._kept.get((namespace, run), {})
            names = list(kept) if identities is None else identities
            dropped = [each for name in names if (each := kept.pop(name, None)) is not None]
            for each in dropped:
                self._free(each)
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
                        self._free(kept)
                if not tensors:
                    del self._kept[run]
            is_empty = not self._kept
        if self._pool is not None and is_empty:
            self._pool.trim(0)

    async def run(self) -> None:
        """Free tensors whose run has passed its deadline, until cancelled."""
        while True:
            await asyncio.sleep(CHECKED_EVERY_S)
            self.drop_expired()

    def _share(self, values: npt.NDArray[Any]) -> SharedBlock | None:
        """A copy in shared memory; None for small ones, and where there is none."""
        if self._pool is None or values.nbytes <= SHARED_OVER_BYTES:
            return None
        try:
            return self._pool.copy(values, max_idle_bytes=self._budget_bytes - self._used_bytes)
        except OSError as error:
            logger.info("a tensor is kept in plain memory", extra={"error": error})
            return None

    def _free(self, kept: _Kept) -> None:
        self._add_bytes(-kept.tensor.data.nbytes)

    def _add_bytes(self, size: int) -> None:
        self._used_bytes += size
        KEPT_TENSOR_BYTES.set(self._used_bytes)


def _copied(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = np.array(values, order="C")
    copy.flags.writeable = False
    return copy
