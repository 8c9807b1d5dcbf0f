"""Networks as a pod loads them, without a pod."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from registry.domain.model import Task
from runtime.device.memory import CpuMemory
from runtime.engines.building import engine_of, library_path
from runtime.engines.engine import ModelFolder
from runtime.weights.converted_weights import converted
from runtime.weights.weight_source import DiskWeights


def load_network(
    folder: Path,
    task: Task | None = None,
    device: torch.device = CpuMemory.device,
    *,
    dtype: torch.dtype | None = None,
    extra: Sequence[Path] = (),
) -> Any:
    """The folder's network or program with its weights mapped, built for the device.

    `extra`: files beside the one that a library reads.
    """
    library = library_path(folder)
    weights_of = sorted([*folder.glob("*.safetensors"), *folder.glob("*.pt2")])
    source = DiskWeights(weights_of if library is None else [library, *extra])
    model = ModelFolder(folder, task, source.layout.tensors, dtype)
    skeleton = engine_of(folder).build_skeleton(model, key="", device=device, threads=1)
    try:
        weights = CpuMemory().put(converted(source, skeleton.conversions))
    finally:
        source.close()
    skeleton.attach(weights.tensors)
    return skeleton.network
