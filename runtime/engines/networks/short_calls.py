"""Less Python in each forward of a network: a third of it beside a device that waits for it.

The operations stay the same, and their order. Torch looks at every call of a module for hooks, and
finds a module's parts by a method that Python calls where an instance has no such attribute.
Transformers asks for the signature of each layer's feed-forward, computed anew unless it is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Dropout, Embedding, LayerNorm, Linear
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    Call = Callable[[Any, dict[str, Any]], Callable[[Tensor], Tensor]]


def shorten_calls(network: PreTrainedModel) -> None:
    """Of a network in evaluation mode, whose modules stay the same; its weights may change."""
    for module in network.modules():
        kind = type(module)
        parts = {name: each for name, each in module._modules.items() if not hasattr(kind, name)}
        vars(module).update(parts)
        feed_forward = getattr(kind, "feed_forward_chunk", None)
        if feed_forward is not None:
            feed_forward.__signature__ = inspect.signature(feed_forward)
        if kind in _CALLS:
            module._compiled_call_impl = _unless_hooked(module, _CALLS[kind])


def _unless_hooked(module: torch.nn.Module, make: Call) -> Callable[[Tensor], Tensor]:
    """The module's call as `make` has it; as torch has it once something records its outputs."""
    call, hooks, hooks_before = (
        make(module, module._parameters), module._forward_hooks, module._forward_pre_hooks,
    )  # fmt: skip

    def called(input: Tensor) -> Tensor:
        if hooks or hooks_before:
            found: Tensor = module._call_impl(input)  # type: ignore[no-untyped-call]  # torch's
            return found
        return call(input)

    return called


def _linear(module: Linear, weights: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    return lambda values: F.linear(values, weights["weight"], weights["bias"])


def _layer_norm(module: LayerNorm, weights: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    shape, eps = module.normalized_shape, module.eps
    return lambda values: F.layer_norm(values, shape, weights["weight"], weights["bias"], eps)


def _embedding(module: Embedding, weights: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    if module.max_norm is not None:  # it changes its weights
        return module.forward
    return lambda ids: torch.embedding(weights["weight"], ids)


def _dropout(module: Dropout, weights: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    return lambda values: values


_CALLS: dict[type, Call] = {
    Linear: _linear, LayerNorm: _layer_norm, Embedding: _embedding, Dropout: _dropout,
}  # fmt: skip
