"""The engine of transformers' models: networks built from configuration, weights attached."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runtime.engines.networks import network
from runtime.engines.networks.quantised import read_quantisation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

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
        return network.build_skeleton(
            model.path,
            model.task,
            _shapes(model),
            key=key,
            device=device,
            dtype=model.dtype,
            prepare=partial(self._prepare, model),
        )

    def _prepare(self, model: ModelFolder, made: PreTrainedModel) -> None:
        quantisation = read_quantisation(model.path, model.tensors)
        if quantisation is not None:
            quantisation.apply(made, {tensor.name: tensor for tensor in model.tensors})

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

    def _prepare(self, model: ModelFolder, made: PreTrainedModel) -> None:
        super()._prepare(model, made)
        self._adapter.apply(made, _shapes(model))


def _shapes(model: ModelFolder) -> network.Shapes:
    return {tensor.name: tensor.shape for tensor in model.tensors}
