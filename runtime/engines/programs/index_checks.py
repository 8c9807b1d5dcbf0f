"""Checks of indices before operators use them on a GPU.

On a CPU an index out of bounds is an error of its call. On a GPU it is an assertion in a kernel,
after which the process cannot use the device any more: a request's tensors would end the pod. Each
check waits for the device and costs two small kernels. Unlisted operators with assertions on the
device (such as `multinomial`) still end the pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._ops import OpOverload

MASKS = frozenset({torch.bool, torch.uint8})
"""Types of indices that are masks; torch checks their shapes without the device."""


def with_index_checks(function: OpOverload) -> Callable[..., Any]:
    """The operator with a check that raises IndexError for indices out of bounds."""
    check = CHECKS.get(function._schema.name.removeprefix("aten::").rstrip("_"))
    if check is None:
        return function
    names = [argument.name for argument in function._schema.arguments]

    def checked(*args: Any, **kwargs: Any) -> Any:
        check({**dict(zip(names, args, strict=False)), **kwargs})
        return function(*args, **kwargs)

    # A new name: under torch's name, torch.fx would generate a call of torch's function.
    checked.__name__ = f"checked_{str(function).replace('.', '_')}"
    return checked


def _check_embedding(given: Mapping[str, Any]) -> None:
    _check(given["indices"], given["weight"].size(0), takes_negative=False)


def _along_dimension(*, takes_negative: bool = False) -> Callable[[Mapping[str, Any]], None]:
    def check(given: Mapping[str, Any]) -> None:
        tensor = given["self"]
        size = tensor.size(given["dim"]) if tensor.dim() else 1
        _check(given["index"], size, takes_negative=takes_negative)

    return check


def _check_all_dimensions(given: Mapping[str, Any]) -> None:
    tensor, indices = given["self"], given["indices"]
    at = 0
    for index in indices:
        if index is None:
            at += 1
        elif index.dtype in MASKS:
            at += index.dim()
        else:
            if at < tensor.dim():  # torch reports too many indices by itself
                _check(index, tensor.size(at), takes_negative=True)
            at += 1


def _check_flat(given: Mapping[str, Any]) -> None:
    _check(given["index"], given["self"].numel(), takes_negative=True)


def _check_assertion(given: Mapping[str, Any]) -> None:
    if not bool(given["self"]):
        raise AssertionError(given.get("assert_msg") or "an assertion of the program does not hold")


CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "embedding": _check_embedding,
    "index": _check_all_dimensions,
    "index_put": _check_all_dimensions,
    "take": _check_flat,
    "put": _check_flat,
    "index_fill": _along_dimension(takes_negative=True),
    "_assert_async": _check_assertion,
    **{
        name: _along_dimension()
        for name in (
            "index_select", "index_add", "index_copy", "index_reduce",
            "gather", "scatter", "scatter_add", "scatter_reduce",
        )
    },
}  # fmt: skip
"""By the operator's name; in-place operators are checked like their other form."""


def _check(index: torch.Tensor, size: int, *, takes_negative: bool) -> None:
    if not index.numel():
        return
    lowest, highest = _extremes(index)
    minimum = -size if takes_negative else 0
    if lowest < minimum or highest >= size:
        wrong = lowest if lowest < minimum else highest
        raise IndexError(f"an index must be at least {minimum} and below {size}, was {wrong}")


def _extremes(index: torch.Tensor) -> Sequence[int]:
    extremes: list[int] = torch.stack(torch.aminmax(index)).tolist()
    return extremes
