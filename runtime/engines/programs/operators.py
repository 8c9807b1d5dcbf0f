"""The operators that a program may use: functions of torch on tensors, and arithmetic on sizes.

Every operator that a program names is looked up here. Operators that access files, expose
uninitialised memory (other models' bytes) or skip bounds checks are excluded, and so is the
program's own code. Operators that allocate empty memory are replaced by those that fill it with
zeros.

On a CPU an index out of bounds is an error of its call. On a GPU it is an assertion in a kernel,
after which the process cannot use the device any more: a request's tensors would end the pod, so
indices are checked before. Each check waits for the device and costs two small kernels. Unlisted
operators with assertions on the device (such as `multinomial`) still end the pod.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from runtime.errors import ModelUnsupported

ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos", "abs",
            "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_",
        )
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not")
    },
}  # fmt: skip
"""Functions of sizes. No powers: a huge one blocks the interpreter and cannot be interrupted."""
ZERO_FILLED = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}
REFUSED = re.compile(
    r"from_file|save|load|print|data|set|set_|set_data|record_stream|is_pinned|pin_memory"
    r"|(empty|new_empty)_\w+|resize\w*|rename\w*|\w*storage\w*|to_(mkldnn|sparse\w*|padded_tensor)"
    r"|sparse\w*|quantize\w*|fbgemm\w*|mkldnn\w*|cudnn\w*|miopen\w*|mps\w*|xnnpack\w*"
)
PRIVATE = re.compile(
    r"__i?(and|or|xor)__|__[lr]shift__|_adaptive_avg_pool[23]d|_assert_(async|scalar|tensor_metadata)"
    r"|_cdist_forward|_fft_(c2c|c2r|r2c)|_local_scalar_dense|_(log_|safe_)?softmax"
    r"|_native_batch_norm_legit(_no_training)?|_prelu_kernel|_shape_as_tensor|_to_copy|_unsafe_view"
    r"|_weight_norm|_scaled_dot_product_(attention_math|efficient_attention|flash_attention(_for_cpu)?)"
    r"|_upsample_bi(linear|cubic)2d_aa"
)
"""Private operators of torch that exported programs use."""
MASKS = frozenset({torch.bool, torch.uint8})
"""Types of indices that are masks; torch checks their shapes without the device."""


def operator_named(target: str) -> Callable[..., Any]:
    """The function of a node's target; raises ModelUnsupported if it is not allowed."""
    if target in ARITHMETIC:
        return ARITHMETIC[target]
    found = ATEN.fullmatch(target)
    if found is None:
        raise _unsupported(target, "operators are torch.ops.aten.* and arithmetic on sizes")
    name, overload = found[1], found[2]
    is_private = name.startswith("_") and not PRIVATE.fullmatch(name)
    if is_private or (name not in ZERO_FILLED and REFUSED.fullmatch(name)):
        raise _unsupported(target, "it accesses more than tensors within their bounds")
    packet = getattr(torch.ops.aten, ZERO_FILLED.get(name, name), None)
    if name in ZERO_FILLED:
        overload = "default"
    function = getattr(packet, overload, None)
    if not isinstance(function, OpOverload) or _writes_to_out(function):
        raise _unsupported(target, f"torch {torch.__version__} has no such operator")
    return function


def has_argument(function: OpOverload, argument: str) -> bool:
    """Whether an operator has an argument; `empty` takes a memory format, `zeros` does not."""
    return any(each.name == argument for each in function._schema.arguments)


def _writes_to_out(function: OpOverload) -> bool:
    return any(argument.is_out for argument in function._schema.arguments)


def _unsupported(target: str, why: str) -> ModelUnsupported:
    return ModelUnsupported(f"the program uses {target[:120]!r}, which is not supported: {why}")


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
