"""Layers of a network by the paths in checkpoints, with the base model's prefix or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def find_layer(network: PreTrainedModel, path: str) -> nn.Module | None:
    prefix = f"{network.base_model_prefix}."
    for each in (path, path.removeprefix(prefix), prefix + path):
        try:
            layer: nn.Module = network.get_submodule(each)
        except AttributeError:
            continue
        return layer
    return None
