"""A default type of floating-point tensors for one thread.

`torch.set_default_dtype` changes it for the whole process: inferences of other models that run
meanwhile would compute their masks and positions in the wrong type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import torch
from torch.overrides import TorchFunctionMode

_OF_FLOATS: Final = frozenset(
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
_BY_VALUE: Final = frozenset({torch.full, torch.arange, torch.tensor, torch.scalar_tensor})
"""Of floats if one of their numbers is a float."""


class DefaultDtype(TorchFunctionMode):
    """In the block, tensors made without a type, of floats, have this one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._thread = 0
        self._process_default = torch.get_default_dtype

    def __enter__(self) -> Self:
        """Only one thread may be in such a block at a time."""
        self._thread = threading.get_ident()
        self._process_default = torch.get_default_dtype
        torch.get_default_dtype = (
            self._default_of_thread
        )  # networks ask it, and modes do not see it
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
            func in _OF_FLOATS
            or (func in _BY_VALUE and _has_float((args, *keywords.values())))
            or (func is torch.normal and (len(args) > 2 or "size" in keywords))
        ):
            keywords["dtype"] = self._dtype
        return func(*args, **keywords)


def _has_float(values: Any) -> bool:
    """Whether Python's own numbers hold a float; tensors and arrays keep their type."""
    if isinstance(values, (list, tuple)):
        return any(_has_float(value) for value in values)
    return isinstance(values, float)
