"""A program's graph: from the archive's JSON to a module of torch.fx, node by node.

No name from the archive becomes an identifier in the generated code, and every operator is looked
up here: functions of torch on tensors, and arithmetic on sizes. Operators that access files, expose
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
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from runtime.errors import ModelInvalid, ModelUnsupported
from runtime.weights.archive import STORED_TYPES
from runtime.weights.safetensors_files import DTYPES

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
    return torch.stack(torch.aminmax(index)).tolist()


BLOCK_POSITION = {
    "torch.ops.higher_order.wrap_with_set_grad_enabled": 1,
    "torch.ops.higher_order.wrap_with_autocast": 4,
}
"""Operators that run a block under a setting, and the position of the block in their arguments."""
KEYWORD = 2
GRAPH_ERRORS = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, SyntaxError,
)  # fmt: skip
"""Exceptions that a malformed graph causes here and in torch.fx."""
MAX_DEPTH = 16
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
STRIDED = 7
PLAIN = frozenset(
    {"as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings", "as_int_lists"}
)


def build_graph(
    document: Mapping[str, Any], weights: AbstractSet[str], device: torch.device
) -> tuple[GraphModule, tuple[str, ...]]:
    """A module that runs a program, and the names of its arguments in order; raises ModelInvalid.

    Args:
        document: the graph of the archive.
        weights: the graph's inputs that no node may write to.
        device: the device on which the program will run.
    """
    try:
        return _Builder(weights, device).build(document)
    except GRAPH_ERRORS as error:
        raise ModelInvalid(f"the program's graph cannot be read: {error!r}") from error


class _Builder:
    def __init__(self, weights: AbstractSet[str], device: torch.device) -> None:
        self._weights = weights
        self._device = device
        self._graph: Graph = torch.fx.Graph()
        self._weight_nodes: set[Node] = set()
        """Weights, and nodes that share memory with them."""

    def build(self, document: Mapping[str, Any]) -> tuple[GraphModule, tuple[str, ...]]:
        values: dict[str, Any] = {}
        names = [entry["as_tensor"]["name"] for entry in document["inputs"] if "as_tensor" in entry]
        for index, name in enumerate(names):
            values[name] = self._graph.placeholder(f"input_{index}")
            if name in self._weights:
                self._weight_nodes.add(values[name])
        outputs = self._add_nodes(document, values, 0)
        self._graph.output(tuple(outputs))
        self._graph.lint()
        return torch.fx.GraphModule(torch.nn.Module(), self._graph), tuple(names)

    def _add_nodes(
        self, document: Mapping[str, Any], values: dict[str, Any], depth: int
    ) -> list[Any]:
        """Add a graph's nodes, and their results to `values`; returns the graph's outputs."""
        arguments = Arguments(values, self._device)
        for node in document["nodes"]:
            if node["target"] in BLOCK_POSITION:
                self._inline_block(node, values, arguments, depth)
            else:
                self._add_node(node, values, arguments)
        return [arguments.read(entry) for entry in document["outputs"]]

    def _inline_block(
        self, node: Mapping[str, Any], values: dict[str, Any], arguments: Arguments, depth: int
    ) -> None:
        """Replace a call by its block: gradients and autocast are always off in a pod."""
        position = BLOCK_POSITION[node["target"]]
        given = [entry["arg"] for entry in node["inputs"]]
        is_autocast = position > 1
        if depth >= MAX_DEPTH or (is_autocast and arguments.read(given[2])):
            raise ModelInvalid(
                "the program runs a part of itself under torch.autocast, which is not supported;"
                " convert the model to the type it should run in, and export it again"
            )
        block = given[position]["as_graph"]["graph"]
        inner = {
            entry["as_tensor"]["name"]: arguments.read(argument)
            for entry, argument in zip(block["inputs"], given[position + 1 :], strict=True)
            if "as_tensor" in entry
        }
        results = self._add_nodes(block, inner, depth + 1)
        values.update(zip(_names(node["outputs"]), results, strict=True))

    def _add_node(
        self, node: Mapping[str, Any], values: dict[str, Any], arguments: Arguments
    ) -> None:
        function = operator_named(node["target"])
        args, kwargs = [], {}
        for entry in node["inputs"]:
            # Keywords become code: only those of the operator's own schema are allowed.
            if entry.get("kind") != KEYWORD or not isinstance(function, OpOverload):
                args.append(arguments.read(entry["arg"]))
            elif has_argument(function, entry["name"]):
                kwargs[entry["name"]] = arguments.read(entry["arg"])
        result = self._graph.call_function(self._with_checks(function), tuple(args), kwargs)
        if isinstance(function, OpOverload):
            self._check_memory(function, result)
        self._name_results(node["outputs"], result, values)

    def _with_checks(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with index checks on a GPU, which a wrong index makes unusable."""
        if self._device.type == "cpu" or not isinstance(function, OpOverload):
            return function
        return with_index_checks(function)

    def _check_memory(self, function: OpOverload, node: Node) -> None:
        """Refuse writes to weights; record nodes that share their memory."""
        schema = function._schema
        for index, argument in enumerate(schema.arguments):
            if argument.alias_info is None:
                continue
            given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            shared = given if isinstance(given, list | tuple) else [given]
            if not any(each in self._weight_nodes for each in shared):
                continue
            if argument.alias_info.is_write:
                raise ModelInvalid(
                    f"the program writes to its own weights or buffers ({function}), which all"
                    " requests share; put the model in evaluation mode and export it again"
                )
            if any(each.alias_info is not None for each in schema.returns):
                self._weight_nodes.add(node)

    def _name_results(
        self, outputs: Sequence[Mapping[str, Any]], result: Node, values: dict[str, Any]
    ) -> None:
        if len(outputs) == 1 and "as_tensors" not in outputs[0]:
            values[_names(outputs)[0]] = result
            return
        names = _names(outputs)
        for index, name in enumerate(names):
            part = self._graph.call_function(operator.getitem, (result, index))
            values[name] = part
            if result in self._weight_nodes:
                self._weight_nodes.add(part)


def _names(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of a node's results; a result without a name is not used."""
    names: list[str] = []
    for output in outputs:
        ((kind, value),) = output.items()
        if kind == "as_tensors":
            names += [each["name"] for each in value]
        else:
            named = value if isinstance(value, dict) else {}
            names.append(str(named.get("name") or named.get("as_name") or ""))
    return names


class Arguments:
    """Resolves arguments against the values of the graph built so far."""

    def __init__(self, values: Mapping[str, Any], device: torch.device) -> None:
        """`device` replaces the device on which the program was exported."""
        self._values = values
        self._device = device

    def read(self, argument: Mapping[str, Any]) -> Any:
        """The argument's value; raises ModelInvalid for an unsupported kind."""
        ((kind, value),) = argument.items()
        match kind:
            case _ if kind in PLAIN:
                return value
            case "as_none":
                return None
            case "as_tensor":
                return self._values[value["name"]]
            case "as_tensors":
                return [self._values[each["name"]] for each in value]
            case "as_nested_tensors":
                return [[self._values[each["name"]] for each in row] for row in value]
            case "as_optional_tensor" | "as_sym_int" | "as_sym_bool" | "as_sym_float":
                return self._named(value)
            case "as_optional_tensors" | "as_sym_ints" | "as_sym_bools" | "as_sym_floats":
                return [self._named(each) for each in value]
            case "as_float":
                return float(value)
            case "as_floats":
                return [float(each) for each in value]
            case "as_complex":
                return complex(float(value["real"]), float(value["imag"]))
            case "as_scalar_type":
                return _dtype(value)
            case "as_memory_format":
                return MEMORY_FORMATS[value]
            case "as_layout" if value == STRIDED:
                return torch.strided
            case "as_device":
                return self._device
        raise ModelInvalid(f"the program has an unsupported argument: {str(argument)[:120]}")

    def _named(self, value: Mapping[str, Any]) -> Any:
        """The value of a name, or a literal value."""
        return self._values[value["as_name"]] if "as_name" in value else self.read(value)


def _dtype(code: int) -> torch.dtype:
    if code not in STORED_TYPES:
        raise ModelInvalid(f"the program converts to an unsupported type (code {code})")
    return DTYPES[STORED_TYPES[code]]
