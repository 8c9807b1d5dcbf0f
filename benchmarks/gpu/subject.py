"""The device that is measured: CUDA, or what stands in for it in tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

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
    from runtime.device.cuda import CudaEngine

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
