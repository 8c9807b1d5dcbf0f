"""Less Python in each forward of a network: a third of it beside a device that waits for it.

The operations stay the same, and their order. Torch looks at every call of a module for hooks, and
finds a module's parts by a method that Python calls where an instance has no such attribute.
Transformers asks for the signature of each layer's feed-forward, computed anew unless it is stored.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Dropout, Embedding, LayerNorm, Linear
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    Call = Callable[[Tensor], Tensor]
    Weights = dict[str, Any]


def shorten_calls(network: PreTrainedModel) -> None:
    """Of a network in evaluation mode, whose modules stay the same; its weights may change.

    Modules refer to themselves weakly: a cycle would keep a device's memory until it is collected.
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


# Each call is torch's own once something records the module's inputs or outputs.


def _linear(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    return lambda input: (
        module._call_impl(input)
        if hooks or before
        else F.linear(input, weights["weight"], weights["bias"])
    )


def _layer_norm(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    shape, eps = module.normalized_shape, module.eps
    return lambda input: (
        module._call_impl(input)
        if hooks or before
        else F.layer_norm(input, shape, weights["weight"], weights["bias"], eps)
    )


def _embedding(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    changes_weights = module.max_norm is not None
    return lambda input: (
        module._call_impl(input)
        if hooks or before or changes_weights
        else torch.embedding(weights["weight"], input)
    )


def _dropout(module: Any, weights: Weights, hooks: object, before: object) -> Call:
    return lambda input: module._call_impl(input) if hooks or before else input


_CALLS: dict[type, Callable[[Any, Weights, object, object], Call]] = {
    Linear: _linear,
    LayerNorm: _layer_norm,
    Embedding: _embedding,
    Dropout: _dropout,
}
