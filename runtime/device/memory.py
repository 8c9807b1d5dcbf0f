"""Memory of a device, one slab per model: on a CPU the mapped file itself, else an allocation.

All weights of a model are in its slab, so that releasing its tensors frees all of its memory. Also
what types of numbers the device takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from registry.domain.model import Precision
from runtime.device.accelerator import bind_near
from runtime.device.staged_memory import StagedMemory
from runtime.errors import DeviceFull, NoDevice
from runtime.storage.load_priority import LoadTicket
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

    def put(self, source: WeightSource, ticket: LoadTicket | None = None) -> DeviceWeights:
        """The tensors of `source`; raises DeviceFull, LoadFailed."""
        del ticket  # mapping takes no turns
        try:
            return DeviceWeights(source.map_tensors(), source.layout.size_bytes)
        except (MemoryError, OSError) as error:
            raise DeviceFull(
                f"{source.layout.size_bytes} bytes cannot be mapped: {error}"
            ) from error

    def register(self, image: WeightSource) -> None:
        """A CPU reads all memory alike."""

    def check(self) -> None:
        """A CPU does not fail for good."""

    def close(self) -> None:
        """Nothing to release."""


DeviceMemory = CpuMemory | StagedMemory
"""Puts weights on a device. Methods block and are thread-safe."""


def open_device(name: str, memory_share: float = 1.0) -> DeviceMemory:
    """The memory of `cpu` or `cuda`; `auto` selects CUDA if it can be used. Raises NoDevice.

    Args:
        name: the setting `device`.
        memory_share: part of the GPU's memory that this process may take.
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
    # 32-bit numbers are multiplied with 10 bits of mantissa, several times as fast, as cuDNN's
    # convolutions are by default; NVIDIA_TF32_OVERRIDE=0 in the environment forbids both.
    torch.set_float32_matmul_precision("high")
    engine = CudaEngine(memory_share)
    bind_near(engine.device)
    return StagedMemory(engine)


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
    return None if wanted is None else getattr(torch, wanted)


REGISTER_READ_ONLY = 8
"""`cudaHostRegisterReadOnly`: of a shared mapping the driver pins the pages of the file itself."""
LOWEST_PRIORITY = 0
"""Of streams; torch's default stream has it, too."""


class CudaEngine:
    """The current device of the pod's environment (`CUDA_VISIBLE_DEVICES`, MPS share).

    The constructor initialises CUDA.
    """

    def __init__(self, memory_share: float = 1.0) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        self._memory_share = memory_share
        if memory_share < 1:  # MPS divides the compute only
            torch.cuda.set_per_process_memory_fraction(memory_share, self.device)
        self._pools: dict[int, torch.cuda.MemPool] = {}
        """By the address of its slab: the memory goes back to the driver when the slab is freed. In
        torch's own cache it would be split, and other processes could not use it until an
        allocation of this one fails."""
        # Of the lowest priority, which orders kernels alone: CUDA says that it has no effect on
        # copies between host and device. What bounds the wait of an inference's inputs for them
        # are their sizes and how many are under way (`staged_memory.MAX_COPIES`).
        self._copies = torch.cuda.Stream(  # type: ignore[no-untyped-call]  # torch's
            self.device, priority=LOWEST_PRIORITY
        )

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Memory that nothing has used before, in a pool of its own; raises DeviceFull.

        It belongs to the default stream, where inference runs and where it is freed. Copies into
        it are complete before any inference uses it, so the copy stream needs no record of it.
        """
        try:
            return self._slab(size_bytes)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # what inferences have left may take the memory
            try:
                return self._slab(size_bytes)
            except torch.OutOfMemoryError as error:
                free, total = torch.cuda.mem_get_info(self.device)
                raise DeviceFull(
                    f"{self.device} has {free} of {total} bytes free, {size_bytes} are needed",
                    missing_bytes=size_bytes - free,
                ) from error

    def _slab(self, size_bytes: int) -> torch.Tensor:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool, self.device):
            slab = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        self._pools[slab.data_ptr()] = pool
        return slab

    def free_bytes(self) -> int:
        """By the driver, with what torch keeps of freed memory, within the process's share."""
        free, total = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        taken = torch.cuda.memory_allocated(self.device)
        return min(int(free) + reserved - taken, int(self._memory_share * total) - taken)

    def register(self, region: torch.Tensor) -> None:
        """Raises RuntimeError, as where the container's limit of locked memory is too low."""
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
        torch.cuda.check_error(
            cudart.cudaHostRegister(region.data_ptr(), region.nbytes, REGISTER_READ_ONLY)
        )

    def unregister(self, region: torch.Tensor) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
        torch.cuda.check_error(cudart.cudaHostUnregister(region.data_ptr()))

    def end_of(self, slab: torch.Tensor) -> Callable[[], None]:
        """The end of its pool, which waits for the device."""
        return [self._pools.pop(slab.data_ptr())].clear

    def allocate_pinned(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        """Start a copy on the copy stream."""
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
            # Blocking: by default, waiting for an event spins, and takes a core from inference.
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's
            done.record(self._copies)
        return done

    def synchronize(self, slab: torch.Tensor) -> None:
        self._copies.synchronize()

    def check(self) -> None:
        torch.cuda.synchronize(self.device)
