"""Linear layers whose weights are stored in 8 bits with scales, and stay so on the device.

Each use multiplies the numbers with their scales, in the type of the inputs: half the memory of
weights in 16 bits, and the same answers as weights that are converted beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from runtime.engines.networks.configuration import read_json
from runtime.engines.networks.reading import StoredNames
from runtime.errors import ModelInvalid
from runtime.weights.safetensors_files import SCALE_NAMES, StoredTensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_METHODS: Final = ("fp8", "compressed-tensors")
_FORMATS: Final = ("float-quantized", "int-quantized", "naive-quantized")
"""Of `compressed-tensors`: one number of 8 bits for each weight, none packed."""
_TYPES: Final = ("F8_E4M3", "F8_E5M2", "I8")
_SIGNS: Final = frozenset({*SCALE_NAMES, "qweight", "weight_packed", "absmax", "SCB"})
"""Last parts of tensors' names in quantised checkpoints, also of methods that are not served."""
_MAX_SIDE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Quantisation:
    block: tuple[int, int] | None
    """Rows and columns that share a scale; None: a row or the whole layer does."""

    def apply(self, network: PreTrainedModel, tensors: Sequence[StoredTensor]) -> None:
        """Give each linear layer with a stored scale the parameter for it.

        Raises ModelInvalid if numbers and scales do not fit.
        """
        stored = {tensor.name: tensor for tensor in tensors}
        layers = StoredNames(network)
        for name, scale in stored.items():
            path, _, leaf = name.rpartition(".")
            if leaf in SCALE_NAMES:
                layer = _linear(network, layers.layer(path), path)
                _check_weight(path, stored.get(f"{path}.weight"))
                self._check_scale(layer, name, scale.shape)
                with torch.device("meta"):
                    empty = nn.Parameter(torch.empty(scale.shape), requires_grad=False)
                layer.register_parameter(leaf, empty)
                layer.__class__ = _scaled(leaf, self.block)
        for name, tensor in stored.items():
            path = name.rpartition(".")[0]
            scales = [f"{path}.{leaf}" for leaf in SCALE_NAMES]
            if tensor.dtype in _TYPES and name.endswith(".weight") and not stored.keys() & scales:
                raise ModelInvalid(f"{name} is stored in 8 bits, and none of {scales} is there")

    def _check_scale(self, layer: nn.Linear, name: str, shape: tuple[int, ...]) -> None:
        rows, columns = layer.weight.shape
        allowed: list[tuple[int, ...]] = [(), (1,), (rows,), (rows, 1)]
        if self.block is not None:
            allowed = [(-(-rows // self.block[0]), -(-columns // self.block[1]))]
        if shape not in allowed:
            raise ModelInvalid(
                f"{name} has shape {list(shape)}; a layer of {[rows, columns]} can have"
                f" {' or '.join(str(list(each)) for each in allowed)}"
            )


def read_quantisation(folder: Path, tensors: Sequence[StoredTensor]) -> Quantisation | None:
    """What config.json says of tensors that are quantised, None if none is.

    Raises ModelInvalid for what is not computed here.
    """
    if not any(tensor.name.rpartition(".")[2] in _SIGNS for tensor in tensors):
        return None
    config = read_json(folder / "config.json").get("quantization_config")
    if not isinstance(config, dict):
        raise ModelInvalid(
            "the weights are quantised: quantization_config of config.json must be an object, was"
            f" {str(config)[:80]!r}"
        )
    method, form = config.get("quant_method"), config.get("format", _FORMATS[0])
    if method not in _METHODS or (method == "compressed-tensors" and form not in _FORMATS):
        raise ModelInvalid(
            f"config.json has quant_method {method!r} and format {config.get('format')!r}; served"
            f" are fp8, and compressed-tensors with a format of {', '.join(_FORMATS)}: use such a"
            " checkpoint, or one without quantisation"
        )
    block = config.get("weight_block_size")
    if block is None:
        return Quantisation(None)
    if not (
        isinstance(block, list)
        and len(block) == 2
        and all(type(side) is int and 0 < side <= _MAX_SIDE for side in block)
    ):
        raise ModelInvalid(f"weight_block_size must be two positive numbers, was {str(block)[:80]}")
    return Quantisation((block[0], block[1]))


def _linear(network: PreTrainedModel, found: str | None, path: str) -> nn.Linear:
    layer = None if found is None else network.get_submodule(found)
    if type(layer) is not nn.Linear:
        kind = "no layer of the network" if layer is None else f"a {type(layer).__name__}"
        raise ModelInvalid(f"{path} has a scale, but is {kind}; only linear layers can have one")
    return layer


def _check_weight(path: str, weight: StoredTensor | None) -> None:
    if weight is None or weight.dtype not in _TYPES:
        found = "absent" if weight is None else weight.dtype
        raise ModelInvalid(
            f"{path} has a scale; its weights must be of {' or '.join(_TYPES)}, were {found}"
        )


@cache
def _scaled(name: str, block: tuple[int, int] | None) -> type[nn.Linear]:
    def forward(self: Any, inputs: torch.Tensor) -> torch.Tensor:
        weight = scaled_weight(self.weight, getattr(self, name), block).to(inputs.dtype)
        return nn.functional.linear(inputs, weight, self.bias)

    return type("ScaledLinear", (nn.Linear,), {"forward": forward})


def scaled_weight(
    weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None
) -> torch.Tensor:
    """The numbers times their scales, in 32 bits."""
    scale = scale.float()
    if block is None:
        return weight.float() * scale.reshape(-1, 1)
    rows, columns = weight.shape
    scale = scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return weight.float() * scale
