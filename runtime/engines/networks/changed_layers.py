"""Changed layers: with LoRA adapters, and with shorter calls.

Hu et al. 2021, "LoRA: low-rank adaptation of large language models": the output of a layer gets
`x A^T B^T * alpha / r` added. The base's weights stay as they are, and are shared.
"""

from __future__ import annotations

import inspect
import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from runtime.engines.networks.configuration import read_json
from runtime.engines.networks.reading import StoredNames
from runtime.errors import ModelInvalid, ModelUnsupported
from runtime.storage.listing import ADAPTER_CONFIG
from runtime.weights.safetensors_files import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


_NAME: Final = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<side>[AB])\.weight")
_UNSUPPORTED: Final = {
    "bias": ("none", None), "use_dora": (False, None), "modules_to_save": (None, []),
    "alpha_pattern": ({}, None), "rank_pattern": ({}, None), "alora_invocation_tokens": (None,),
    "megatron_config": (None,), "lora_bias": (False, None), "trainable_token_indices": (None,),
    "use_qalora": (False, None), "layer_replication": (None,), "target_parameters": (None, []),
}  # fmt: skip
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


_QUANTISED_NAMES: Final = frozenset(
    {"weight_scale", "weight_scale_inv", "qweight", "weight_packed", "absmax", "SCB"}
)
"""Last parts of tensors' names in quantised checkpoints."""
_QUANTISED_TYPES: Final = frozenset({"F8_E4M3", "F8_E5M2", "I8"})


def check_not_quantised(folder: Path, tensors: Sequence[StoredTensor]) -> None:
    """Raise ModelUnsupported for a checkpoint of quantised weights."""
    for tensor in tensors:
        leaf = tensor.name.rpartition(".")[2]
        if leaf in _QUANTISED_NAMES or (leaf == "weight" and tensor.dtype in _QUANTISED_TYPES):
            config = read_json(folder / "config.json").get("quantization_config")
            raise ModelUnsupported(
                f"{tensor.name} is of a quantised checkpoint (quantization_config"
                f" {str(config)[:80]!r}), which vLLM alone computes here: use a pool with"
                " --engine-python, or a checkpoint with weights of 16 or 32 bits"
            )


Call: TypeAlias = "Callable[[Tensor], Tensor]"
Weights: TypeAlias = dict[str, Any]


def shorten_calls(network: PreTrainedModel) -> None:
    """Replace the calls of a network's modules by shorter ones with the same operations.

    A third less Python beside a device that waits for it: torch looks at every call for hooks, and
    finds a module's parts by `__getattr__`; transformers computes the signature of each layer's
    feed-forward anew. A call is torch's own while hooks are set. The network is in evaluation mode
    and keeps its modules; its weights may change. Modules refer to themselves weakly: a cycle would
    keep a device's memory until it is collected.
    """
    for module in network.modules():
        kind = type(module)
        parts = {name: each for name, each in module._modules.items() if not hasattr(kind, name)}
        vars(module).update(parts)
        chunk = getattr(kind, "feed_forward_chunk", None)
        if chunk is not None:
            short: Any = partial(chunk, weakref.proxy(module))
            short.__signature__ = inspect.signature(short)
            module.feed_forward_chunk = short
        if kind in _CALLS:
            module._compiled_call_impl = _CALLS[kind](
                weakref.proxy(module),
                module._parameters,
                module._forward_hooks,
                module._forward_pre_hooks,
            )


def _linear_call(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    return lambda input: (
        module._call_impl(input)
        if hooks or before
        else nn.functional.linear(input, weights["weight"], weights["bias"])
    )


def _layer_norm_call(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    shape, eps = module.normalized_shape, module.eps
    return lambda input: (
        module._call_impl(input)
        if hooks or before
        else nn.functional.layer_norm(input, shape, weights["weight"], weights["bias"], eps)
    )


def _embedding_call(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    changes_weights = module.max_norm is not None
    return lambda input: (
        module._call_impl(input)
        if hooks or before or changes_weights
        else torch.embedding(weights["weight"], input)
    )


def _dropout_call(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    return lambda input: module._call_impl(input) if hooks or before else input


_CALLS: dict[type, Callable[[Any, Weights, object, object], Call]] = {
    nn.Linear: _linear_call,
    nn.LayerNorm: _layer_norm_call,
    nn.Embedding: _embedding_call,
    nn.Dropout: _dropout_call,
}
