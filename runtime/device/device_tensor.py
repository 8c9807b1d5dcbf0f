"""Tensors on the device, copied to numpy only when read, and the memory of those that are kept.

Networks, `data` and all work of the device's thread use the device's default stream. Other threads
read on a stream of their own, which does not wait for a running inference: so a tensor leaves the
device's thread only once the work that made it has ended (`wait_for`).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import BF16, BYTES, NUMPY_OF, Tensor
from runtime.device.device_errors import is_device_lost, is_out_of_memory
from runtime.metrics import DEVICE_TENSOR_COPIED_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedModel

_origins = count()
DEFAULT_SHARE: Final = 1 / 16
"""Part of a GPU's budget for models that kept tensors may use."""


class DeviceTensor(Tensor):
    """A torch tensor. Each read of `data` copies it to host memory."""

    __slots__ = ("lease", "origin", "values")
    values: torch.Tensor
    lease: object
    """Its memory counts as kept while this object exists; None: it is not kept."""
    origin: int
    """Identity shared by all views of one tensor; never reused."""

    def __init__(
        self,
        name: str,
        datatype: str,
        values: torch.Tensor,
        lease: object = None,
        origin: int | None = None,
    ) -> None:
        for attribute, value in (
            ("name", name),
            ("datatype", datatype),
            ("values", values),
            ("lease", lease),
            ("origin", next(_origins) if origin is None else origin),
        ):
            object.__setattr__(self, attribute, value)  # it is frozen

    @property
    def data(self) -> npt.NDArray[Any]:
        """The values; waits for all work of the device. On a CPU the tensor's own memory."""
        if self.lease is not None:
            DEVICE_TENSOR_COPIED_BYTES.labels("used").inc(self.host_bytes)
        values = self.values.float() if self.datatype == BF16 else self.values
        array = values.cpu().numpy()  # not `force=True`, which copies with Python's lock held
        return np.ascontiguousarray(array).reshape(array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def host_bytes(self) -> int:
        return self.values.numel() * self.host_type.itemsize

    @property
    def host_type(self) -> np.dtype[Any]:
        """Type of the values in numpy."""
        return np.dtype(np.float32) if self.datatype == BF16 else NUMPY_OF[self.datatype]

    def renamed(self, name: str) -> DeviceTensor:
        return DeviceTensor(name, self.datatype, self.values, self.lease, self.origin)

    def rows(self, begin: int, end: int) -> DeviceTensor:
        rows = self.values[begin:end]
        return DeviceTensor(self.name, self.datatype, rows, self.lease, self.origin)

    def content(self) -> bytes:
        """Bytes that identify the tensor, not its values: a device that hangs cannot be read."""
        place = (self.origin, self.values.storage_offset(), *self.values.shape)
        return repr(place).encode()

    def is_finite(self) -> bool:
        if not self.values.is_floating_point() or not self.values.numel():
            return True
        with _reading(self.values.device):
            bounds = torch.aminmax(self.values)  # both are NaN if one number is; no large temporary
            return bool(torch.isfinite(torch.stack(bounds)).all())

    def copy_to(self, target: npt.NDArray[Any]) -> None:
        """Copy the values to `target` without waiting for a running inference."""
        with _reading(self.values.device):
            torch.from_numpy(target).copy_(self.values)


def _reading(device: torch.device) -> AbstractContextManager[object]:
    """Read complete tensors on a stream beside inferences; the block must use the result."""
    return torch.cuda.stream(_stream(device)) if device.type == "cuda" else nullcontext()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all threads, since torch caches memory per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's


def on_host(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors, of numpy; waits for all work of the device if one is still there."""
    return tuple(
        Tensor(each.name, each.datatype, each.data) if isinstance(each, DeviceTensor) else each
        for each in tensors
    )


def wait_for(tensors: Iterable[Tensor]) -> None:
    """Return when the work of the current stream that makes them has ended; raises its errors."""
    if any(isinstance(each, DeviceTensor) and each.values.is_cuda for each in tensors):
        torch.cuda.current_stream().synchronize()


def values_on(device: torch.device, tensor: Tensor) -> torch.Tensor:
    """The tensor's values on the device; the memory is its own if they are there already."""
    if isinstance(tensor, DeviceTensor):
        return tensor.values.to(device)
    array = tensor.data if tensor.data.flags.writeable else tensor.data.copy()
    values = torch.from_numpy(array)
    return values.to(device, torch.bfloat16 if tensor.datatype == BF16 else values.dtype)


def torch_inputs(
    inputs: Sequence[Tensor], network: PreTrainedModel, required: str = "input_ids"
) -> dict[str, torch.Tensor]:
    """The network's keyword arguments on its device; raises InvalidRequest."""
    arguments, device = {}, network.device  # found among its parameters each time
    for tensor in inputs:
        if tensor.datatype == BYTES:
            raise InvalidRequest(f"tensor {tensor.name!r} must be numeric, was BYTES")
        arguments[tensor.name] = values_on(device, tensor)
    if required not in arguments:
        raise InvalidRequest(f"inference needs a tensor {required!r}, got {sorted(arguments)}")
    return arguments


def concatenated(parts: Sequence[Tensor]) -> DeviceTensor | None:
    """The rows of all parts, on the device; None if none of them is there."""
    first = next((each for each in parts if isinstance(each, DeviceTensor)), None)
    if first is None:
        return None
    values = torch.cat([values_on(first.values.device, each) for each in parts])
    return DeviceTensor(first.name, first.datatype, values)


class SpillReason(StrEnum):
    """Why a kept tensor is copied to the host; also a metric's label."""

    LIMIT = "limit"
    """Newer tensors need its memory."""
    LOAD = "load"
    """A model needs its memory."""
    FETCHED = "fetched"
    """Another pod or a scheduler fetches it."""


class _Lease:
    """Held by a kept tensor and its views; its memory counts until the last of them is freed."""


class KeptMemory:
    """Device memory of steps' outputs: what models leave of the budget, up to a limit.

    Models have precedence: a load that needs the memory has outputs copied to the host.
    """

    def __init__(self, limit_bytes: int = 0, budget_bytes: int = 0) -> None:
        """`budget_bytes`: the budget for models on the device."""
        self._limit_bytes = limit_bytes
        self._budget_bytes = budget_bytes
        self._models_bytes = 0
        self.spill: Callable[[int, SpillReason], None] = lambda missing_bytes, reason: None
        """Copies the oldest tensors to the host until `missing_bytes` are freed; may block."""
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
        """Limit of all kept tensors together."""
        return min(self._limit_bytes, self._budget_bytes - self._models_bytes)

    def set_models_bytes(self, size_bytes: int) -> None:
        """Set the bytes of the budget that models and loads use now."""
        self._models_bytes = size_bytes

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._count()

    @property
    def excess_bytes(self) -> int:
        """Bytes by which kept tensors exceed their room."""
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
        if lease is None:  # running steps use the rest
            return None
        try:
            values = tensor.values.clone(memory_format=torch.contiguous_format)
        except RuntimeError as error:
            if is_out_of_memory(error):
                return None
            raise
        return DeviceTensor(tensor.name, tensor.datatype, values, lease)

    def free_for_load(self, missing_bytes: int = 0) -> bool:
        """Free bytes that a load needs, of the budget or `missing_bytes` of the device. Blocks.

        False if nothing was freed.
        """
        needed_bytes = max(missing_bytes, self.excess_bytes)
        before_bytes = self.used_bytes
        if needed_bytes > 0 and before_bytes:
            self.spill(needed_bytes, SpillReason.LOAD)
        return self.used_bytes < before_bytes

    def mark_lost(self) -> None:
        """Record that the device has failed for good."""
        self._is_lost = True
        self.on_lost()

    def on_copy_failed(self, error: Exception) -> None:
        """Handle a failed copy from the device, perhaps because the device failed."""
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
