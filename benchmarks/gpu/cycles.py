"""Memory of the device after many loads, inferences and unloads of one model."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.serving import infer
from benchmarks.gpu.subject import Subject
from benchmarks.tiers.ours import filled_skeleton
from runtime.device.staged_memory import StagedMemory
from runtime.engines.engine import Skeletons
from runtime.weights.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Cycles:
    """Bytes after each unload; the first cycle makes what a device's libraries keep for good."""

    allocated: list[int]
    used: list[int]

    @property
    def left_bytes(self) -> int:
        """What all cycles after the first have left behind in tensors."""
        return self.allocated[-1] - self.allocated[0]

    @property
    def grown_bytes(self) -> int:
        """What the whole device lacks more than after the first cycle."""
        return self.used[-1] - self.used[0]


def measure_cycles(
    subject: Subject,
    memory: StagedMemory,
    folder: Path,
    opened: Callable[[], WeightSource],
    *,
    cycles: int,
) -> Cycles:
    """Load, infer, unload; the skeleton is kept in between, as in a pod."""
    skeletons = Skeletons()
    result = Cycles([], [])
    for _ in range(cycles + 1):
        skeleton = filled_skeleton(folder, opened(), skeletons, memory)
        infer(skeleton.network, memory.device)
        skeletons.put_back(skeleton)
        del skeleton
        gc.collect()
        result.allocated.append(subject.allocated_bytes())
        result.used.append(subject.used_bytes())
    return result
