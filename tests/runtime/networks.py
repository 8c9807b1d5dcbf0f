"""Networks as a pod loads them, without a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.device.memory import CpuMemory
from runtime.engines.building import build_skeleton
from runtime.weights.weight_source import DiskWeights

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from registry.domain.model import Task


def load_network(
    folder: Path, task: Task | None = None, device: torch.device = CpuMemory.device
) -> Any:
    """The folder's network or program with its weights mapped, built for the device."""
    source = DiskWeights(sorted([*folder.glob("*.safetensors"), *folder.glob("*.pt2")]))
    try:
        weights = CpuMemory().put(source)
    finally:
        source.close()
    skeleton = build_skeleton(folder, task, source.layout.tensors, key="", device=device)
    skeleton.attach(weights.tensors)
    return skeleton.network
