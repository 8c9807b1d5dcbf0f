"""The engine of transformers' models: networks built from configuration, weights attached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.engines.networks import network

if TYPE_CHECKING:
    import torch

    from runtime.engines.engine import ModelFolder
    from runtime.engines.networks.adapter import Adapter
    from runtime.engines.skeletons import Skeleton


class NetworkEngine:
    name = "transformers"
    takes_dtype = True
    uses_device = True

    def skeleton_key(self, model: ModelFolder) -> str:
        return network.skeleton_key(model.path, model.task, model.tensors, model.dtype)

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        shapes = {tensor.name: tensor.shape for tensor in model.tensors}
        return network.build_skeleton(
            model.path, model.task, shapes, key=key, device=device, dtype=model.dtype
        )

    def working_bytes(self, weight_bytes: int) -> int:
        return 0  # its generation cache is reserved apart


class AdapterEngine(NetworkEngine):
    """Builds the network of an adapter's base, with the adapter's matrices.

    The model's folder is that of the base; its tensors are those of both.
    """

    takes_dtype = False

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{super().skeleton_key(model)} {self._adapter.scale}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return network.build_skeleton(
            model.path,
            model.task,
            {tensor.name: tensor.shape for tensor in model.tensors},
            key=key,
            device=device,
            dtype=model.dtype,
            adapter=self._adapter,
        )
