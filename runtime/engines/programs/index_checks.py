"""Indices are checked before operators of a GPU meet them.

On a CPU an index out of bounds is an error of its call. On a GPU it is an assertion inside a
kernel, after which the process can use the device no more: a request's tensors would end the pod.
Each check waits for the device and costs two small kernels. Operators that are not listed and
assert on the device (such as `multinomial`) still end it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._ops import OpOverload

MASKS = frozenset({torch.bool, torch.uint8})
"""Types of indices that choose by yes and no; their shapes are checked without the device."""


def with_index_checks(function: OpOverload) -> Callable[..., Any]:
    """The operator, which then raises IndexError for what its kernel would not survive."""
    check = CHECKS.get(function._schema.name.removeprefix("aten::").rstrip("_"))
    if check is None:
        return function
    names = [argument.name for argument in function._schema.arguments]

    def checked(*args: Any, **kwargs: Any) -> Any:
        check({**dict(zip(names, args, strict=False)), **kwargs})
        return function(*args, **kwargs)

    # A name of its own: by torch's name, torch.fx would write a call of torch's function.
    checked.__name__ = f"checked_{str(function).replace('.', '_')}"
    return checked


def _of_embedding(given: Mapping[str, Any]) -> None:
    _check(given["indices"], given["weight"].size(0), takes_negative=False)


def _along(*, takes_negative: bool = False) -> Callable[[Mapping[str, Any]], None]:
    def check(given: Mapping[str, Any]) -> None:
        whole = given["self"]
        size = whole.size(given["dim"]) if whole.dim() else 1
        _check(given["index"], size, takes_negative=takes_negative)

    return check


def _of_all_dimensions(given: Mapping[str, Any]) -> None:
    whole, indices = given["self"], given["indices"]
    at = 0
    for index in indices:
        if index is None:
            at += 1
        elif index.dtype in MASKS:
            at += index.dim()
        else:
            if at < whole.dim():  # else there are too many, which torch says by itself
                _check(index, whole.size(at), takes_negative=True)
            at += 1


def _of_flat(given: Mapping[str, Any]) -> None:
    _check(given["index"], given["self"].numel(), takes_negative=True)


def _of_assertion(given: Mapping[str, Any]) -> None:
    if not bool(given["self"]):
        raise AssertionError(given.get("assert_msg") or "an assertion of the program does not hold")


CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "embedding": _of_embedding,
    "index": _of_all_dimensions,
    "index_put": _of_all_dimensions,
    "take": _of_flat,
    "put": _of_flat,
    "index_fill": _along(takes_negative=True),
    "_assert_async": _of_assertion,
    **{
        name: _along()
        for name in (
            "index_select", "index_add", "index_copy", "index_reduce",
            "gather", "scatter", "scatter_add", "scatter_reduce",
        )
    },
}  # fmt: skip
"""By the operator's name; one in place is checked as its other form."""


def _check(index: torch.Tensor, size: int, *, takes_negative: bool) -> None:
    if not index.numel():
        return
    lowest, highest = _extremes(index)
    least = -size if takes_negative else 0
    if lowest < least or highest >= size:
        wrong = lowest if lowest < least else highest
        raise IndexError(f"an index must be at least {least} and below {size}, was {wrong}")


def _extremes(index: torch.Tensor) -> Sequence[int]:
    extremes: list[int] = torch.stack(torch.aminmax(index)).tolist()
    return extremes
