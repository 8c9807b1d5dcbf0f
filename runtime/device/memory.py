"""Memory of a device, one slab per model: on a CPU the mapped file itself, else an allocation.

All weights of a model are in its slab, so that releasing its tensors frees all of its memory. Also
what types of numbers the device takes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import torch

from registry.domain.model import Precision
from runtime.device.accelerator import CPU, available_bytes
from runtime.device.forward_graphs import GraphMaker
from runtime.device.staged_memory import StagedMemory
from runtime.errors import DeviceFull, NoDevice
from runtime.storage.load_ticket import LoadTicket
from runtime.weights.safetensors_files import DeviceWeights
from runtime.weights.weight_source import WeightSource

logger = logging.getLogger(__name__)

DEVICE_NODES: Final = Path("/dev")
"""Has `nvidia0` and so on in a pod that was given GPUs, whether or not they can be used."""


class CpuMemory:
    """The memory of a CPU pod: weights in tier `host` or `disk` are mapped, never copied."""

    device = torch.device("cpu")
    has_bfloat16 = False
    """Of a device that multiplies such numbers in software."""
    graphs: GraphMaker | None = None

    def put(self, source: WeightSource, ticket: LoadTicket | None = None) -> DeviceWeights:
        """The tensors of `source`; raises DeviceFull, LoadFailed."""
        del ticket  # mapping takes no turns
        try:
            return DeviceWeights(source.map_tensors(), source.layout.size_bytes)
        except (MemoryError, OSError) as error:
            raise DeviceFull(
                f"{source.layout.size_bytes} bytes cannot be mapped: {error}"
            ) from error

    def free_bytes(self) -> int:
        return available_bytes(CPU)

    def drop_registered(self) -> bool:
        return False

    def check(self) -> None:
        """A CPU does not fail for good."""

    def close(self) -> None:
        """Nothing to release."""


DeviceMemory = CpuMemory | StagedMemory
"""Puts weights on a device. Methods block and are thread-safe."""


def open_device(
    name: str, memory_share: float = 1.0, *, registered_bytes: int = 0, cuda_graphs: bool = False
) -> DeviceMemory:
    """The memory of `cpu` or `cuda`; `auto` selects CUDA if it can be used. Raises NoDevice.

    Args:
        name: the setting `device`.
        memory_share: part of the GPU's memory that this process may take.
        registered_bytes: the setting of that name.
        cuda_graphs: the setting of that name.
    """
    if name == "cpu":
        return CpuMemory()
    if not torch.cuda.is_available():
        reason = cuda_problem()
        if name == "cuda":
            raise NoDevice(
                f"device is 'cuda', but this pod cannot use CUDA: {reason}; give it a GPU whose"
                " driver fits this torch, or set device to 'cpu' or 'auto'"
            )
        if held := sorted(DEVICE_NODES.glob("nvidia[0-9]*")):
            extra = {"gpus": [node.name for node in held], "reason": reason}
            logger.warning("the pod has a GPU, but serves on the CPU", extra=extra)
        return CpuMemory()
    from runtime.device.cuda import CudaEngine

    engine = CudaEngine(memory_share, cuda_graphs=cuda_graphs)
    return StagedMemory(engine, registered_bytes=registered_bytes)


def cuda_problem() -> str:
    """Why torch cannot use CUDA: no driver, one that is too old, or a device that failed."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "it sees no CUDA device (CUDA_VISIBLE_DEVICES selects them)"


def dtype_on(
    device: torch.device, wanted: Precision | None, *, has_bfloat16: bool
) -> torch.dtype | None:
    """The type of the weights; None: as stored, also on a GPU that lacks bfloat16."""
    if wanted is Precision.BFLOAT16 and device.type == "cuda" and not has_bfloat16:
        logger.warning("the GPU has no bfloat16; weights stay as they are stored")
        return None
    stored: torch.dtype | None = None if wanted is None else getattr(torch, wanted)
    return stored


def use_tf32() -> None:
    """Let a GPU multiply 32-bit numbers with 10 bits of mantissa, several times as fast.

    cuDNN's convolutions do so by default. Not for pods on a CPU, where it would apply, too.
    """
    torch.set_float32_matmul_precision("high")
