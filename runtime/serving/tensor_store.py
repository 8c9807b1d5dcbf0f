"""Outputs of workflows' steps that stay at the pod until the run ends, for later steps of the run.

A tensor is found only by its namespace, run and unguessable identity. Thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from common.inference_protocol.tensors import Tensor
from registry.domain.estimates import SHARED_OVER_BYTES
from runtime.metrics import KEPT_TENSOR_BYTES
from runtime.serving.shared_memory import BlockPool, SharedBlock, max_blocks

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
