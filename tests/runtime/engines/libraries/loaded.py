"""A library's model and its task, as a pod loads them, without a pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from runtime.device.memory import CpuMemory
from runtime.engines.building import build_skeleton, library_path
from runtime.tasks.processors import load_processor
from runtime.weights.weight_source import DiskWeights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from registry.domain.model import Task
    from runtime.tasks.task import Processor
    from runtime.wire.tensors import Tensor


@dataclass(frozen=True)
class Loaded:
    processor: Processor
    network: Any

    def v1(self, instances: Sequence[Any]) -> list[Any]:
        """The predictions of a V1 body's instances."""
        return self.processor.predictions(self.v2(self.processor.read_instances(instances)))

    def v2(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of a V2 request."""
        inputs = self.processor.batching.validate(
            self.processor.preprocess(self.processor.read_tensors(tensors))
        )
        self.processor.batching.batch_key(inputs, self.network)
        return self.processor.postprocess(self.processor.infer(self.network, inputs))


def load(folder: Path, task: Task | None = None, extra: Sequence[Path] = ()) -> Loaded:
    """Raises LoadFailed, as a load in a pod does."""
    path = library_path(folder)
    assert path is not None
    source = DiskWeights([path, *extra])
    try:
        weights = CpuMemory().put(source)
    finally:
        source.close()
    processor = load_processor(folder, task)
    skeleton = build_skeleton(
        folder, task, source.layout.tensors, key="", device=torch.device("cpu")
    )
    skeleton.attach(weights.tensors)
    processor.warm_up(skeleton.network)
    return Loaded(processor, skeleton.network)
