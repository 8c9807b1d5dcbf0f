"""The engine of diffusers' pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.engines.images.pipeline import build_pipeline, pipeline_key

if TYPE_CHECKING:
    import torch

    from runtime.engines.engine import ModelFolder
    from runtime.engines.skeletons import Skeleton


class PipelineEngine:
    name = "diffusers"
    takes_dtype = False
    uses_device = True

    def skeleton_key(self, model: ModelFolder) -> str:
        return pipeline_key(model.path, model.tensors)

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return build_pipeline(model.path, model.tensors, key=key, device=device)

    def working_bytes(self, weight_bytes: int) -> int:
        return 0
