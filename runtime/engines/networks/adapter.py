"""LoRA adapters in PEFT's format: small matrices beside the layers of a base model's network.

Hu et al. 2021, "LoRA: low-rank adaptation of large language models": the output of a layer gets
`x A^T B^T * alpha / r` added. The base's weights stay as they are, and are shared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from runtime.engines.networks.configuration import read_json
from runtime.engines.networks.reading import StoredNames
from runtime.errors import ModelInvalid
from runtime.storage.listing import ADAPTER_CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME: Final = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<side>[AB])\.weight")
_UNSUPPORTED: Final = {
    "bias": ("none", None),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "alpha_pattern": ({}, None),
    "rank_pattern": ({}, None),
    "alora_invocation_tokens": (None,),
    "megatron_config": (None,),
    "lora_bias": (False, None),
    "trainable_token_indices": (None,),
    "use_qalora": (False, None),
    "layer_replication": (None,),
    "target_parameters": (None, []),
}
"""Fields of the configuration that would change what is computed, and what they may be."""


@dataclass(frozen=True, slots=True)
class Adapter:
    scale: float

    def apply(
        self, network: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, str]:
        """Give the layers that the stored tensors name their matrices, without memory.

        Returns the names in the network of the adapter's tensors. Raises ModelInvalid if a layer
        does not exist, or has no matrix of fitting sizes.
        """
        layers, names = StoredNames(network), dict[str, str]()
        sides: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            if (found := _NAME.fullmatch(name)) is not None:
                path = layers.layer(found["path"])
                if path is None:
                    raise ModelInvalid(
                        f"the adapter is for {found['path']}, which the base's network does not"
                        " have"
                    )
                sides.setdefault(path, {})[found["side"]] = shape
                names[name] = f"{path}.lora_{found['side']}"
        if not sides:
            raise ModelInvalid(f"the adapter has no tensors such as {_EXAMPLE}")
        for path, matrices in sides.items():
            self._apply_to(network.get_submodule(path), path, matrices)
        return names

    def _apply_to(
        self, layer: nn.Module, path: str, matrices: Mapping[str, tuple[int, ...]]
    ) -> None:
        inputs, outputs = _sizes(layer, path)
        left, right = matrices.get("A", ()), matrices.get("B", ())
        fits = len(left) == len(right) == 2 and left[0] == right[1]
        if not fits or (left[1], right[0]) != (inputs, outputs):
            raise ModelInvalid(
                f"the adapter's matrices of {path} are A {list(left)} and B {list(right)}; the"
                f" base's layer has {inputs} inputs and {outputs} outputs"
            )
        with torch.device("meta"):
            layer.lora_A = nn.Parameter(torch.empty(left), requires_grad=False)
            layer.lora_B = nn.Parameter(torch.empty(right), requires_grad=False)
        layer.lora_scale = self.scale  # type: ignore[assignment]  # a plain number
        layer.__class__ = _adapted(type(layer))  # type: ignore[arg-type]  # a class has a hash


_EXAMPLE: Final = "base_model.model.LAYER.lora_A.weight"


def read_adapter(folder: Path) -> Adapter:
    """The adapter of a model's folder; raises ModelInvalid for what is not computed here."""
    fields = read_json(folder / ADAPTER_CONFIG)
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise ModelInvalid(f"{ADAPTER_CONFIG} has peft_type {kind!r}; only LORA can be served")
    for name, allowed in _UNSUPPORTED.items():
        if name in fields and fields[name] not in allowed:
            raise ModelInvalid(
                f"{ADAPTER_CONFIG} has {name} {str(fields[name])[:80]!r}; only {allowed[0]!r} can"
                " be served: merge the adapter into its base, and declare that as a model"
            )
    rank, alpha = fields.get("r"), fields.get("lora_alpha")
    if type(rank) is not int or rank < 1 or alpha is None or not _is_number(alpha):
        raise ModelInvalid(
            f"{ADAPTER_CONFIG} needs r, a whole number from 1, and the number lora_alpha;"
            f" they are {rank!r} and {alpha!r}"
        )
    return Adapter(float(alpha) / (math.sqrt(rank) if fields.get("use_rslora") else rank))


def check_names(names: Iterable[str]) -> None:
    """Raise ModelInvalid if an adapter holds other tensors than matrices of layers."""
    others = sorted(name for name in names if not _NAME.fullmatch(name))
    if others:
        raise ModelInvalid(f"the adapter holds {others[:3]}; only {_EXAMPLE} and B can be served")


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and math.isfinite(value)


def _sizes(layer: nn.Module, path: str) -> tuple[int, int]:
    """Inputs and outputs."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    raise ModelInvalid(
        f"the adapter is for {path}, a {type(layer).__name__}; only linear layers can be adapted"
    )


@cache
def _adapted(kind: type[nn.Module]) -> type[nn.Module]:
    """The kind of layer, with the product of the matrices added."""

    def forward(self: Any, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = kind.forward(self, inputs)
        reduced = nn.functional.linear(inputs.to(self.lora_A.dtype), self.lora_A)
        added = nn.functional.linear(reduced, self.lora_B) * self.lora_scale
        total: torch.Tensor = outputs + added.to(outputs.dtype)
        return total

    return type(f"Adapted{kind.__name__}", (kind,), {"forward": forward})
