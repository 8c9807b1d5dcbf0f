"""The device that is measured: CUDA, or the CPU in its place, which shows that a benchmark runs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.device.accelerator import CPU, available_bytes
from runtime.device.staged_memory import CopyEngine


@dataclass(frozen=True, slots=True)
class Subject:
    """A device and what it says of its memory."""

    name: str
    """With the version of what drives it."""
    engine: CopyEngine
    allocated_bytes: Callable[[], int]
    """What tensors hold now."""
    used_bytes: Callable[[], int]
    """What the whole device lacks now, caches and other processes included."""


def cuda_subject() -> Subject | None:
    """The current CUDA device, or None where there is none."""
    if not torch.cuda.is_available():
        return None
    from runtime.device.memory import CudaEngine

    engine = CudaEngine()

    def used_bytes() -> int:
        free, total = torch.cuda.mem_get_info(engine.device)
        return int(total - free)

    return Subject(
        f"{torch.cuda.get_device_name(engine.device)}, torch {torch.__version__}",
        engine,
        lambda: int(torch.cuda.memory_allocated(engine.device)),
        used_bytes,
    )


def dry_subject() -> Subject:
    """The CPU with the interface of a GPU: its figures say nothing of one."""
    return Subject("the CPU in place of a GPU", _CpuEngine(), lambda: 0, lambda: 0)


class _Done:
    def synchronize(self) -> None:
        """The copy was made when it was started."""


class _CpuEngine:
    device = torch.device("cpu")
    has_bfloat16 = False

    def allocate(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def allocate_pinned(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> _Done:
        target.copy_(source)
        return _Done()

    def free_bytes(self) -> int:
        return available_bytes(CPU)

    def register(self, region: torch.Tensor) -> None:
        """A CPU reads all memory alike."""

    def unregister(self, region: torch.Tensor) -> None:
        """See `register`."""

    def end_of(self, slab: torch.Tensor) -> None:
        """Memory that is dropped is free."""

    def synchronize(self, slab: torch.Tensor) -> None:
        """Nothing is under way."""

    def check(self) -> None:
        """A CPU does not fail for good."""
