"""Outputs of workflows' steps that stay at the pod until the run ends, for later steps of the run.

A tensor is found only by its namespace, run and unguessable identity. A tensor on the device is
copied to the host when its memory is needed or another process reads it. Thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from common.inference_protocol.tensors import Tensor
from registry.domain.estimates import SHARED_OVER_BYTES
from runtime.device.device_tensor import DeviceTensor, KeptMemory, SpillReason
from runtime.metrics import DEVICE_TENSOR_COPIED_BYTES, KEPT_TENSOR_BYTES
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
    """A `DeviceTensor` if it is on the device."""
    expires_s: float
    block: SharedBlock | None
    """The tensor's memory, if other pods of the node may map it."""


class TensorStore:
    """Keeps tensors in at most `budget_bytes` of host memory; others are not kept.

    Tensors on the device count as well, so that they can be copied to the host at any time, and so
    does unused shared memory, which is freed once no tensor is kept.
    """

    def __init__(
        self,
        budget_bytes: int,
        now_s: Callable[[], float] = time.monotonic,
        *,
        shares_memory: bool = False,
        device: KeptMemory | None = None,
    ) -> None:
        """`shares_memory`: keep large tensors where other pods of the node can map them.

        `device`: counts the memory of kept tensors on the device.
        """
        self._device = device or KeptMemory()
        self._device.spill = self.spill
        self._device.on_lost = self.drop_device_tensors
        self._on_device: dict[str, tuple[str, str]] = {}
        """Namespace and run of tensors on the device by identity, the oldest first."""
        self._ended: dict[tuple[str, str], None] = {}
        """The runs that ended last, in order."""
        self._copying = threading.Lock()
        """Held while a tensor is copied to the host."""
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

        A tensor on the host is copied: it may be a view of a batch, whose memory must not be held.
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
        is_on_device = isinstance(tensor, DeviceTensor) and tensor.lease is not None
        try:
            kept = _Kept(tensor, expires_s, None) if is_on_device else self._copy(tensor, expires_s)
        except BaseException:
            with self._lock:
                self._add_bytes(-size)
            raise
        identity = secrets.token_hex(16)
        with self._lock:
            self._kept.setdefault((namespace, run), {})[identity] = kept
            if is_on_device:
                self._on_device[identity] = (namespace, run)
        return identity

    def find(self, namespace: str, run: str, identity: str) -> Tensor | None:
        """A kept tensor, not a copy; None: not kept here, or not for this namespace and run."""
        kept = self._find(namespace, run, identity)
        return None if kept is None else kept.tensor

    def is_on_device(self, identities: Iterable[str]) -> bool:
        """Whether one of the tensors is on the device."""
        return not self._on_device.keys().isdisjoint(identities)

    def find_on_host(self, namespace: str, run: str, identity: str) -> Tensor | None:
        """As `find`; if the tensor is on the device, it is copied to the host. May block."""
        if identity in self._on_device:
            self._move(namespace, run, identity, SpillReason.FETCHED)
        return self.find(namespace, run, identity)

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
                self._free(name, kept.pop(name))
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
                        self._free(identity, kept)
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

    def spill(self, missing_bytes: int, reason: SpillReason) -> None:
        """Copy tensors from the device to the host, the oldest first, until so much is freed.

        Blocks. Memory that steps use is freed when they end.
        """
        with self._lock:
            oldest = list(self._on_device.items())
        for identity, (namespace, run) in oldest:
            if missing_bytes <= 0:
                return
            missing_bytes -= self._move(namespace, run, identity, reason)

    def _move(self, namespace: str, run: str, identity: str, reason: SpillReason) -> int:
        """Copy a tensor to the host; returns the bytes freed on the device.

        If the copy fails, the tensor is dropped.
        """
        with self._copying:
            kept = self._find(namespace, run, identity)
            if kept is None or not isinstance(kept.tensor, DeviceTensor):
                return 0
            try:
                on_host = self._copy(kept.tensor, kept.expires_s)
            except (RuntimeError, MemoryError) as error:
                logger.warning("a kept tensor is lost", extra={"error": error})
                self.drop(namespace, run, [identity])
                self._device.on_copy_failed(error)
                return kept.tensor.values.nbytes
        DEVICE_TENSOR_COPIED_BYTES.labels(reason).inc(kept.tensor.host_bytes)
        with self._lock:
            self._on_device.pop(identity, None)
            tensors = self._kept.get((namespace, run), {})
            if tensors.get(identity) is kept:
                tensors[identity] = on_host
        return kept.tensor.values.nbytes

    def drop_device_tensors(self) -> None:
        """Drop all tensors on the device, which has failed for good."""
        with self._lock:
            lost = list(self._on_device.items())
        for identity, run in lost:
            self.drop(*run, [identity])

    def _copy(self, tensor: Tensor, expires_s: float) -> _Kept:
        """A read-only copy in host memory; in shared memory if it is large."""
        shape, dtype, fill = tensor.shape, tensor.host_type, tensor.copy_to
        block = None
        if self._pool is not None and tensor.host_bytes > SHARED_OVER_BYTES:
            idle_bytes = self._budget_bytes - self._used_bytes
            try:
                block = self._pool.write(shape, dtype, fill, max_idle_bytes=idle_bytes)
            except OSError as error:
                logger.info("a tensor is kept in plain memory", extra={"error": error})
        if block is None:
            data = np.empty(shape, dtype)
            fill(data)
            data.flags.writeable = False
        else:
            data = block.values
        return _Kept(Tensor(tensor.name, tensor.datatype, data), expires_s, block)

    def _free(self, identity: str, kept: _Kept) -> None:
        self._on_device.pop(identity, None)
        self._add_bytes(-kept.tensor.host_bytes)

    def _add_bytes(self, size: int) -> None:
        self._used_bytes += size
        KEPT_TENSOR_BYTES.set(self._used_bytes)
