"""A program's graph: from the archive's JSON to a module of torch.fx, node by node.

Names of the archive become no names of code, and every operator comes from `operators`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from runtime.engines.programs.arguments import Arguments
from runtime.engines.programs.index_checks import with_index_checks
from runtime.engines.programs.operators import operator_named, takes
from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from torch.fx import Graph, GraphModule, Node

SCOPES = {
    "torch.ops.higher_order.wrap_with_set_grad_enabled": 1,
    "torch.ops.higher_order.wrap_with_autocast": 4,
}
"""Blocks that change a setting, and how many arguments stand before the block itself."""
KEYWORD = 2
UNREADABLE = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, SyntaxError,
)  # fmt: skip
"""What a graph that torch did not write runs into here and in torch.fx."""
MOST_DEPTH = 16


def build_graph(
    document: Mapping[str, Any], weights: AbstractSet[str], device: torch.device
) -> tuple[GraphModule, tuple[str, ...]]:
    """A module that runs a program, and the names of what it takes in order; raises ModelInvalid.

    Args:
        document: the graph of the archive.
        weights: those inputs of the graph that no node may write to.
        device: where the program is to run.
    """
    try:
        return _Builder(weights, device).build(document)
    except UNREADABLE as error:
        raise ModelInvalid(f"the program's graph cannot be read: {error!r}") from error


class _Builder:
    """One graph on its way."""

    def __init__(self, weights: AbstractSet[str], device: torch.device) -> None:
        self._weights = weights
        self._device = device
        self._graph: Graph = torch.fx.Graph()
        self._owned: set[Node] = set()
        """Weights, and what shares memory with them."""

    def build(self, document: Mapping[str, Any]) -> tuple[GraphModule, tuple[str, ...]]:
        values: dict[str, Any] = {}
        names = [entry["as_tensor"]["name"] for entry in document["inputs"] if "as_tensor" in entry]
        for index, name in enumerate(names):
            values[name] = self._graph.placeholder(f"input_{index}")
            if name in self._weights:
                self._owned.add(values[name])
        outputs = self._add_nodes(document, values, 0)
        self._graph.output(tuple(outputs))
        self._graph.lint()
        return torch.fx.GraphModule(torch.nn.Module(), self._graph), tuple(names)

    def _add_nodes(
        self, document: Mapping[str, Any], values: dict[str, Any], depth: int
    ) -> list[Any]:
        """Add a graph's nodes; `values` gets what they give."""
        arguments = Arguments(values, self._device)
        for node in document["nodes"]:
            if node["target"] in SCOPES:
                self._add_scope(node, values, arguments, depth)
            else:
                self._add_node(node, values, arguments)
        return [arguments.read(entry) for entry in document["outputs"]]

    def _add_scope(
        self, node: Mapping[str, Any], values: dict[str, Any], arguments: Arguments, depth: int
    ) -> None:
        """Put a block in place of its call: gradients and autocast are off here anyway."""
        before = SCOPES[node["target"]]
        given = [entry["arg"] for entry in node["inputs"]]
        is_autocast = before > 1
        if depth >= MOST_DEPTH or (is_autocast and arguments.read(given[2])):
            raise ModelInvalid(
                "the program runs a part of itself under torch.autocast, which is not served;"
                " convert the model to the type it should run in, and export again"
            )
        block = given[before]["as_graph"]["graph"]
        inner = {
            entry["as_tensor"]["name"]: arguments.read(argument)
            for entry, argument in zip(block["inputs"], given[before + 1 :], strict=True)
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
            # Names of keywords become code: only those of the operator's own schema may.
            if entry.get("kind") != KEYWORD or not isinstance(function, OpOverload):
                args.append(arguments.read(entry["arg"]))
            elif takes(function, entry["name"]):
                kwargs[entry["name"]] = arguments.read(entry["arg"])
        result = self._graph.call_function(self._safe(function), tuple(args), kwargs)
        if isinstance(function, OpOverload):
            self._check_memory(function, result)
        self._name_results(node["outputs"], result, values)

    def _safe(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; for a device that does not survive wrong indices, with a check of them."""
        if self._device.type == "cpu" or not isinstance(function, OpOverload):
            return function
        return with_index_checks(function)

    def _check_memory(self, function: OpOverload, node: Node) -> None:
        """Refuse to write to weights; note what shows their memory."""
        schema = function._schema
        for index, about in enumerate(schema.arguments):
            if about.alias_info is None:
                continue
            given = node.args[index] if index < len(node.args) else node.kwargs.get(about.name)
            shared = given if isinstance(given, list | tuple) else [given]
            if not any(each in self._owned for each in shared):
                continue
            if about.alias_info.is_write:
                raise ModelInvalid(
                    f"the program writes to its own weights or buffers ({function}), which requests"
                    " would share; put the model in evaluation mode and export again"
                )
            if any(each.alias_info is not None for each in schema.returns):
                self._owned.add(node)

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
            if result in self._owned:
                self._owned.add(part)


def _names(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a node's results are called; one without a name is used by nobody."""
    names: list[str] = []
    for output in outputs:
        ((kind, value),) = output.items()
        if kind == "as_tensors":
            names += [each["name"] for each in value]
        else:
            named = value if isinstance(value, dict) else {}
            names.append(str(named.get("name") or named.get("as_name") or ""))
    return names
