"""Changed calls of torch: a default dtype per thread, and forwards with less overhead."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import torch
from torch.nn import Dropout, Embedding, LayerNorm, Linear
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


_FLOAT_FACTORIES: Final = frozenset(
    {
        torch.empty,
        torch.empty_strided,
        torch.zeros,
        torch.ones,
        torch.rand,
        torch.randn,
        torch.eye,
        torch.linspace,
        torch.logspace,
        torch.bartlett_window,
        torch.blackman_window,
        torch.hamming_window,
        torch.hann_window,
        torch.kaiser_window,
    }
)
_VALUE_FACTORIES: Final = frozenset({torch.full, torch.arange, torch.tensor, torch.scalar_tensor})
"""They make float tensors if one of their arguments is a float."""


class DefaultDtype(TorchFunctionMode):
    """In the block, float tensors made by this thread without a dtype have this one.

    `torch.set_default_dtype` applies to the whole process: concurrent inferences of other models
    would compute masks and positions in the wrong dtype.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._thread = 0
        self._process_default = torch.get_default_dtype

    def __enter__(self) -> Self:
        """Only one thread may be in such a block at a time."""
        self._thread = threading.get_ident()
        self._process_default = torch.get_default_dtype
        # Networks call it, and modes do not intercept it.
        torch.get_default_dtype = self._default_of_thread
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]  # torch's

    def __exit__(self, *error: object) -> None:
        torch.get_default_dtype = self._process_default
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's

    def _default_of_thread(self) -> torch.dtype:
        is_own = threading.get_ident() == self._thread
        return self._dtype if is_own else self._process_default()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        keywords = dict(kwargs or {})
        if keywords.get("dtype") is None and (
            func in _FLOAT_FACTORIES
            or (func in _VALUE_FACTORIES and _has_float((args, *keywords.values())))
            or (func is torch.normal and (len(args) > 2 or "size" in keywords))
        ):
            keywords["dtype"] = self._dtype
        return func(*args, **keywords)


def _has_float(values: Any) -> bool:
    """True if one of Python's numbers is a float; tensors and arrays keep their dtype."""
    if isinstance(values, (list, tuple)):
        return any(_has_float(value) for value in values)
    return isinstance(values, float)


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
