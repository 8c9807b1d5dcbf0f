"""Tensors that are still on the device: they become numpy only where somebody asks for that.

Networks run on the device's default stream, and so do `data` and all work of the device's thread.
Other threads read with a stream of their own, which does not wait for the inference that runs: so
a tensor leaves the device's thread only once the work that made it has ended (`wait_for`).
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from runtime.metrics import DEVICE_TENSOR_COPIED_BYTES
from runtime.wire.tensors import BF16, NUMPY_OF, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

DATATYPE_OF: Final[Mapping[torch.dtype, str]] = {
    torch.from_numpy(np.empty(0, dtype)).dtype: name for name, dtype in NUMPY_OF.items()
} | {torch.bfloat16: BF16}


_origins = count()


class DeviceTensor(Tensor):
    """A tensor of torch. Its `data` is a copy in memory of the host, made whenever it is read."""

    __slots__ = ("lease", "origin", "values")
    values: torch.Tensor
    lease: object
    """Its memory is counted as kept as long as this exists; None: it is not kept."""
    origin: int
    """The same for all views of one tensor, and never used again."""

    def __init__(
        self, name: str, datatype: str, values: torch.Tensor, lease: object = None,
        origin: int | None = None,
    ) -> None:  # fmt: skip
        for attribute, value in (
            ("name", name), ("datatype", datatype), ("values", values), ("lease", lease),
            ("origin", next(_origins) if origin is None else origin),
        ):  # fmt: skip
            object.__setattr__(self, attribute, value)  # it is frozen

    @property
    def data(self) -> npt.NDArray[Any]:
        """Waits for all work of the device. On a CPU it is the tensor's own memory."""
        if self.lease is not None:
            DEVICE_TENSOR_COPIED_BYTES.labels("used").inc(self.host_bytes)
        values = self.values.float() if self.datatype == BF16 else self.values
        array = values.numpy(force=True)
        return np.ascontiguousarray(array).reshape(array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def host_bytes(self) -> int:
        return self.values.numel() * self.host_type.itemsize

    @property
    def host_type(self) -> np.dtype[Any]:
        """Of its form in numpy."""
        return np.dtype(np.float32) if self.datatype == BF16 else NUMPY_OF[self.datatype]

    def renamed(self, name: str) -> DeviceTensor:
        return DeviceTensor(name, self.datatype, self.values, self.lease, self.origin)

    def rows(self, begin: int, end: int) -> DeviceTensor:
        rows = self.values[begin:end]
        return DeviceTensor(self.name, self.datatype, rows, self.lease, self.origin)

    def content(self) -> bytes:
        """Its identity, since a device that hangs cannot be read."""
        place = (self.origin, self.values.storage_offset(), *self.values.shape)
        return repr(place).encode()

    def is_finite(self) -> bool:
        if not self.values.is_floating_point() or not self.values.numel():
            return True
        with _reading(self.values.device):
            bounds = torch.aminmax(self.values)  # both are NaN if one number is; no large temporary
            return bool(torch.isfinite(torch.stack(bounds)).all())

    def copy_to(self, target: npt.NDArray[Any]) -> None:
        """Copy it to the host, in its form there, while an inference may run."""
        with _reading(self.values.device):
            torch.from_numpy(target).copy_(self.values)


def _reading(device: torch.device) -> AbstractContextManager[object]:
    """Work that only reads what is complete. It ends before the block does: its result is used."""
    return torch.cuda.stream(_stream(device)) if device.type == "cuda" else nullcontext()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all threads: memory that torch caches for a stream serves no other one."""
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


def concatenated(parts: Sequence[Tensor]) -> DeviceTensor | None:
    """The rows of all parts, on the device; None if none of them is there."""
    first = next((each for each in parts if isinstance(each, DeviceTensor)), None)
    if first is None:
        return None
    values = torch.cat([values_on(first.values.device, each) for each in parts])
    return DeviceTensor(first.name, first.datatype, values)
