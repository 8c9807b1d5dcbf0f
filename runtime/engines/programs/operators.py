"""The operators that a program may use: functions of torch on tensors, and arithmetic on sizes.

Every operator that a program names is looked up here. Operators that access files, expose
uninitialised memory (other models' bytes) or skip bounds checks are excluded, and so is the
program's own code. Operators that allocate empty memory are replaced by those that fill it with
zeros.
"""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
PRIVATE = frozenset({
    "__and__", "__or__", "__xor__", "__iand__", "__ior__", "__ixor__",
    "__lshift__", "__rshift__", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_cdist_forward", "_fft_c2c",
    "_fft_c2r", "_fft_r2c", "_local_scalar_dense", "_log_softmax", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_prelu_kernel", "_safe_softmax", "_shape_as_tensor",
    "_softmax", "_to_copy", "_unsafe_view", "_weight_norm",
    "_scaled_dot_product_attention_math", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
})  # fmt: skip
"""Private operators of torch that exported programs use."""


def operator_named(target: str) -> Callable[..., Any]:
    """The function of a node's target; raises ModelInvalid if it is not allowed."""
    if target in ARITHMETIC:
        return ARITHMETIC[target]
    found = ATEN.fullmatch(target)
    if found is None:
        raise _unsupported(target, "operators are torch.ops.aten.* and arithmetic on sizes")
    name, overload = found[1], found[2]
    is_private = name.startswith("_") and name not in PRIVATE
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


def _unsupported(target: str, why: str) -> ModelInvalid:
    return ModelInvalid(f"the program uses {target[:120]!r}, which is not supported: {why}")
