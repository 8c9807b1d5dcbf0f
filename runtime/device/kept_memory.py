"""Device memory of steps' outputs that stay there: what models leave of the budget, up to a limit.

Models have precedence: a load that needs the memory has outputs copied to the host. Memory is
counted until the last user of a tensor is gone. Thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import torch

from runtime.device.device_errors import is_device_lost, is_out_of_memory
from runtime.device.device_tensor import DeviceTensor

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_SHARE: Final = 1 / 16
"""Of a GPU's budget for models."""


class SpillReason(StrEnum):
    """Why a kept tensor is copied to the host; also a metric's label."""

    LIMIT = "limit"
    """Newer ones need its memory."""
    LOAD = "load"
    """A model does."""
    FETCHED = "fetched"
    """Another pod or a scheduler takes it."""


class _Lease:
    """Ends with its last tensor."""


class KeptMemory:
    def __init__(self, limit_bytes: int = 0, budget_bytes: int = 0) -> None:
        """`budget_bytes` is that of the models."""
        self._limit_bytes = limit_bytes
        self._budget_bytes = budget_bytes
        self._models_bytes = 0
        self.spill: Callable[[int, SpillReason], None] = lambda missing_bytes, reason: None
        """Copies the oldest tensors to the host until so much is freed; may block."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the device has failed for good, and all tensors with it."""
        self.on_failed: Callable[[Exception], None] = lambda error: None
        """Called with the error of a device that has failed for good."""
        self._is_lost = False
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._freed: deque[int] = deque()
        """Appended to by finalizers, which run at any point and take no lock."""

    @property
    def room_bytes(self) -> int:
        """For all kept tensors together."""
        return min(self._limit_bytes, self._budget_bytes - self._models_bytes)

    def models_take(self, size_bytes: int) -> None:
        """What models and loads have of the budget now."""
        self._models_bytes = size_bytes

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._count()

    @property
    def excess_bytes(self) -> int:
        """What a load needs of the memory of tensors."""
        return self.used_bytes - max(0, self.room_bytes)

    def keep(self, tensor: DeviceTensor) -> DeviceTensor | None:
        """A copy in memory of its own; None if there is no room. In the device's thread.

        The tensor may be a part of a batch, or lie in a model's weights.
        """
        size_bytes = tensor.values.nbytes
        if self._is_lost or size_bytes > self.room_bytes:
            return None
        missing_bytes = self.used_bytes + size_bytes - self.room_bytes
        if missing_bytes > 0:
            self.spill(missing_bytes, SpillReason.LIMIT)
        lease = self._take(size_bytes)
        if lease is None:  # steps use the others
            return None
        try:
            values = tensor.values.clone(memory_format=torch.contiguous_format)
        except RuntimeError as error:
            if is_out_of_memory(error):
                return None
            raise
        return DeviceTensor(tensor.name, tensor.datatype, values, lease)

    def make_way(self, missing_bytes: int = 0) -> bool:
        """Free what a load needs of the budget, or is missing on the device; False if it has all.

        Blocks.
        """
        needed_bytes = max(missing_bytes, self.excess_bytes)
        before_bytes = self.used_bytes
        if needed_bytes > 0 and before_bytes:
            self.spill(needed_bytes, SpillReason.LOAD)
        return self.used_bytes < before_bytes

    def lose(self) -> None:
        """The device has failed for good."""
        self._is_lost = True
        self.on_lost()

    def failed(self, error: Exception) -> None:
        """A copy from the device failed, perhaps since the device did."""
        if is_device_lost(error):
            self.on_failed(error)

    def _take(self, size_bytes: int) -> _Lease | None:
        with self._lock:
            if self._count() + size_bytes > self.room_bytes:
                return None
            self._used_bytes += size_bytes
        lease = _Lease()
        weakref.finalize(lease, self._freed.append, size_bytes).atexit = False
        return lease

    def _count(self) -> int:
        while self._freed:
            self._used_bytes -= self._freed.popleft()
        return self._used_bytes
