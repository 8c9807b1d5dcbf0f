"""Memory of a device, one slab per model: on a CPU the mapped file itself, else an allocation.

All weights of a model are in its slab, so that releasing its tensors frees all of its memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from runtime.device.staged_memory import StagedMemory
from runtime.errors import DeviceFull, NoDevice
from runtime.weights.slab import DeviceWeights

if TYPE_CHECKING:
    from runtime.weights.weight_source import WeightSource


class DeviceMemory(Protocol):
    """Puts weights on a device. Methods block and are thread-safe."""

    device: torch.device

    def put(self, source: WeightSource) -> DeviceWeights:
        """The tensors of `source` on the device; raises DeviceFull, LoadFailed, LoadCancelled."""

    def close(self) -> None:
        """Release buffers and threads."""


class CpuMemory:
    """The memory of a CPU pod: weights in tier `host` or `disk` are mapped, never copied."""

    device = torch.device("cpu")

    def put(self, source: WeightSource) -> DeviceWeights:
        try:
            return DeviceWeights(source.map_tensors(), source.layout.size_bytes)
        except (MemoryError, OSError) as error:
            raise DeviceFull(
                f"{source.layout.size_bytes} bytes cannot be mapped: {error}"
            ) from error

    def close(self) -> None:
        """Nothing to release."""


def open_device(name: str) -> DeviceMemory:
    """The memory of `cpu` or `cuda`; `auto` selects CUDA if available. Raises NoDevice."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return CpuMemory()
    if not torch.cuda.is_available():
        raise NoDevice(
            "device is 'cuda', but this pod sees no CUDA device;"
            " give it a GPU (and a torch built for CUDA), or set device to 'cpu' or 'auto'"
        )
    from runtime.device.cuda import CudaEngine

    return StagedMemory(CudaEngine())
