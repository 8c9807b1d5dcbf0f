"""The engine of transformers' models: networks built from configuration, weights attached."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from runtime.engines.engine import Engine, ModelFolder
from runtime.engines.networks.adapter import Adapter
from runtime.engines.networks.network import build_skeleton, digest_of
from runtime.engines.networks.quantised import read_quantisation
from runtime.engines.skeletons import Skeleton
from runtime.storage.listing import MODULES

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class NetworkEngine(Engine):
    name = "transformers"
    takes_dtype = True

    def skeleton_key(self, model: ModelFolder) -> str:
        names = ("config.json", "generation_config.json", MODULES)
        return digest_of(model.path, names, f"{model.task!r} {model.dtype}", model.tensors)

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return build_skeleton(model, key=key, device=device, prepare=partial(self._prepare, model))

    def _prepare(self, model: ModelFolder, made: PreTrainedModel) -> Mapping[str, str]:
        quantisation = read_quantisation(model.path, model.tensors)
        if quantisation is not None:
            quantisation.apply(made, model.tensors)
        return {}


class AdapterEngine(NetworkEngine):
    """Builds the network of an adapter's base, with the adapter's matrices.

    The model's folder is that of the base; its tensors are those of both.
    """

    takes_dtype = False

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{super().skeleton_key(model)} {self._adapter.scale}"

    def _prepare(self, model: ModelFolder, made: PreTrainedModel) -> Mapping[str, str]:
        super()._prepare(model, made)
        return self._adapter.apply(made, {each.name: each.shape for each in model.tensors})
