"""Changed layers: with LoRA adapters, with weights of 8 bits, and with shorter calls.

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
from runtime.errors import ModelInvalid
from runtime.storage.listing import ADAPTER_CONFIG
from runtime.weights.safetensors_files import SCALE_NAMES, StoredTensor

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
    """What config.json says of quantised tensors, None if none is.

    Weights of 8 bits stay so on the device: each use multiplies them by their scales, in the type
    of the inputs.

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
