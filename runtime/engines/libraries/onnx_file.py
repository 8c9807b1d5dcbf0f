"""What an ONNX file says of itself (onnx.proto), read field by field, without a schema.

And what it makes onnxruntime allocate at its load, counted before anything else reads it:
onnxruntime itself checks dense tensors against their bytes in the file, and computes at the load
whatever depends on constants only (constant folding): bounded per node, so nodes are counted here.
Sparse tensors become dense ones, many tensors may name one external file, and a function that calls
others many times becomes many nodes: all of them are summed up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from runtime.errors import ModelInvalid

_FIXED64, _SIZED, _FIXED32 = 1, 2, 5
_SHORT_STRING: Final = 32
"""Bytes of names of nodes and classes are fewer."""
_MAX_VARINT_BYTES: Final = 10


def runs_of(*, floats: int, integers: int, strings: int) -> re.Pattern[bytes]:
    """Matches entries of three repeated fields, the strings short ones, for `fields` to pass over.

    The fields have numbers below 16, which take one byte with their type.
    """
    fixed = _tag(floats, _FIXED32) + b".{4}"
    number = _tag(integers, 0) + b"[\\x80-\\xff]{0,%d}+[\\x00-\\x7f]" % (_MAX_VARINT_BYTES - 1)
    sized = (re.escape(bytes([size])) + b".{%d}" % size for size in range(_SHORT_STRING))
    text = _tag(strings, _SIZED) + b"(?:%b)" % b"|".join(sized)
    return re.compile(b"(?:%b)++|(?:%b)++|(?:%b)++" % (fixed, number, text), re.DOTALL)


def _tag(number: int, kind: int) -> bytes:
    return re.escape(bytes([number << 3 | kind]))


def fields(
    message: memoryview, passed_over: re.Pattern[bytes] | None = None
) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: an int, or the bytes of a string or message.

    `passed_over`: what `runs_of` gave: millions of entries take a few hundred milliseconds. Raises
    ModelInvalid if the message is cut short or no protobuf.
    """
    for number, value, _, _ in entries(message, passed_over):
        yield number, value


def entries(
    message: memoryview, passed_over: re.Pattern[bytes] | None = None
) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """As `fields`, each with the place of its first byte in the message and of the one behind."""
    at, end = 0, len(message)
    while at < end:
        begin = at
        if passed_over is not None and (run := passed_over.match(message, at)) is not None:
            at = run.end()
            continue
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        match kind:
            case 0:
                value, at = _varint(message, at)
                yield number, value, begin, at
                continue
            case 2:
                size, at = _varint(message, at)
            case 1 | 5:
                size = 8 if kind == _FIXED64 else 4
            case _:
                raise ModelInvalid(f"the file is no protobuf: field {number} has type {kind}")
        if at + size > end:
            raise ModelInvalid(f"the file is cut short: field {number} needs {size} bytes")
        yield number, message[at : at + size], begin, at + size
        at += size


def encoded(number: int, content: bytes) -> bytes:
    """A string or message as the field of a message."""
    return _encoded_varint(number << 3 | _SIZED) + _encoded_varint(len(content)) + content


def _encoded_varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: int | memoryview) -> str:
    """A string field; raises ModelInvalid."""
    if isinstance(value, int):
        raise ModelInvalid("the file is no model: a number where a text should be")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"the file holds a text that is not UTF-8: {error}") from error


def message(value: int | memoryview) -> memoryview:
    """A message field; raises ModelInvalid."""
    if isinstance(value, int):
        raise ModelInvalid("the file is no model: a number where a message should be")
    return value


def varints(value: int | memoryview) -> list[int]:
    """The numbers of a repeated field's entry: one, or many that are packed; raises ModelInvalid.

    Negative numbers are those of 64 bits without a sign.
    """
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(data):
            raise ModelInvalid("the file is cut short within a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ModelInvalid("the file is no protobuf: a number has more than 10 bytes")


MAX_DEPTH: Final = 32
"""Of graphs within nodes: a loop in a loop. Exporters write three or four."""
INLINED_NODES: Final = 16_384
"""Nodes that a model's own functions may become, all calls together."""
NODE_BYTES: Final = 2400
"""Of a node in onnxruntime, which takes few bytes in the file: 50,000 in a chain took 111 MB."""
_ALLOWANCE_BYTES: Final = 64 * 1024**2
_ALLOWANCE_RATIO: Final = 4
"""An honest constant is a weight in another form: 8 bits become 32, or a copy is transposed."""
_KNOWN_OF_ANY: Final = frozenset({"Shape", "Size"})
"""Operators that are constant where the shape of their input is."""
# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_TRAINING, _MODEL_FUNCTION = 7, 20, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_SPARSE = 1, 5, 11, 15
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR = 1, 2, 3, 4
_NODE_ATTRIBUTE, _NODE_DOMAIN = 5, 7
_NUMBERS: Final = runs_of(floats=7, integers=8, strings=9)
"""And strings of an attribute: a forest has millions."""
_TENSOR, _GRAPH, _TENSORS, _GRAPHS, _SPARSE, _SPARSES = 5, 6, 10, 11, 22, 23
_SPARSE_VALUES, _SPARSE_DIMS = 1, 3
_DIMS, _TYPE, _NAME, _EXTERNAL = 1, 2, 8, 13
_FUNCTION_NAME, _FUNCTION_NODE, _FUNCTION_DOMAIN = 1, 7, 10
_ITEM_BYTES: Final = {
    **dict.fromkeys((2, 3, 9, *range(17, 26)), 1),
    **dict.fromkeys((4, 5, 10, 16), 2),
    **dict.fromkeys((1, 6, 12), 4),
    **dict.fromkeys((7, 11, 13, 14), 8),
}
_LONGEST_ITEM: Final = 32
"""Of a text in memory, and for types that are not known."""


def load_allowance(weight_bytes: int) -> int:
    """Bytes that constants may take at the load of a model whose files have `weight_bytes`."""
    return _ALLOWANCE_BYTES + _ALLOWANCE_RATIO * weight_bytes


def folding_limit(content: memoryview, allowance: int) -> int:
    """Bytes that each node may be folded to, so that all together stay within the allowance.

    Raises ModelInvalid if the sparse and external tensors exceed it, and names the first too many.
    """
    walk = _Walk(allowance)
    model = _Message(content)
    if (graph := model.only(_MODEL_GRAPH, "a graph")) is not None:
        walk.graph(graph, frozenset(), 0)
    if model.all(_MODEL_TRAINING):
        raise ModelInvalid("the file holds a training graph; export the model for inference")
    inlined = _inlined(walk, [_Message(message(each)) for each in model.all(_MODEL_FUNCTION)])
    return max(1, allowance // max(1, walk.foldable + inlined))


def _inlined(walk: _Walk, functions: list[_Message]) -> int:
    """Nodes that the graph's calls of the model's own functions become.

    Each may call others many times: onnxruntime's own limit, also set, is seen after minutes.
    """
    calls_of: dict[str, list[str]] = {}
    for function in functions:
        calls = walk.function(function)
        name = _callee(function, _FUNCTION_DOMAIN, _FUNCTION_NAME)
        calls_of[name] = calls_of.get(name, []) + calls  # those of all overloads
    sizes: dict[str, int] = {}
    waiting = set(calls_of)
    while waiting:
        ready = {name for name in waiting if waiting.isdisjoint(calls_of[name])}
        if not ready:
            raise ModelInvalid(f"functions call each other in a circle: {sorted(waiting)[:4]}")
        for name in ready:
            sizes[name] = sum(1 + sizes.get(called, 0) for called in calls_of[name])
            if sizes[name] > INLINED_NODES:
                raise ModelInvalid(
                    f"function {name} has {sizes[name]} nodes with those that it calls; allowed"
                    f" are {INLINED_NODES}"
                )
        waiting -= ready
    total = sum(sizes.get(called, 0) for called in walk.calls)
    if total > INLINED_NODES:
        raise ModelInvalid(
            f"calls of the model's functions become {total} nodes; allowed are {INLINED_NODES}"
        )
    return total


class _Message:
    """The fields of a message, by number."""

    def __init__(self, content: memoryview, passed_over: re.Pattern[bytes] | None = None) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for number, value in fields(content, passed_over):
            self._fields.setdefault(number, []).append(value)

    def all(self, number: int) -> list[int | memoryview]:
        return self._fields.get(number, [])

    def only(self, number: int, what: str) -> memoryview | None:
        """A message that may be there once: readers of protobuf would join two of them."""
        found = self.all(number)
        if len(found) > 1:
            raise ModelInvalid(f"the file holds {what} twice in one place")
        return message(found[0]) if found else None

    def texts(self, number: int) -> list[str]:
        return [text(value) for value in self.all(number)]

    def last_text(self, number: int) -> str:
        return text(self._fields[number][-1]) if number in self._fields else ""


class _Walk:
    def __init__(self, allowance: int) -> None:
        self.foldable = 0
        """Nodes that may be computed at the load."""
        self.calls: list[str] = []
        """The operators of all nodes so far, each as often as it is used."""
        self._allowance = allowance
        self._bytes = 0

    def graph(self, content: memoryview, variable: frozenset[str], depth: int) -> None:
        """`variable`: names of values, here or around, that are known at an inference only."""
        if depth > MAX_DEPTH:
            raise ModelInvalid(f"the file holds graphs within graphs, more than {MAX_DEPTH} deep")
        graph = _Message(content)
        stored = {self._tensor(message(each), "") for each in graph.all(_GRAPH_INITIALIZER)}
        for each in graph.all(_GRAPH_SPARSE):
            stored.add(self._sparse(message(each), ""))
        inputs = (_Message(message(each)).last_text(1) for each in graph.all(_GRAPH_INPUT))
        now_variable = {*variable, *(name for name in inputs if name not in stored)}
        for each in graph.all(_GRAPH_NODE):
            node = _Message(message(each))
            operator = node.last_text(_NODE_OPERATOR)
            self.calls.append(_callee(node, _NODE_DOMAIN, _NODE_OPERATOR))
            self._take(NODE_BYTES, f"{_label(node)} is one of {len(self.calls)} nodes")
            if operator in _KNOWN_OF_ANY or now_variable.isdisjoint(node.texts(_NODE_INPUT)):
                self.foldable += operator != "Constant"
            else:
                now_variable.update(node.texts(_NODE_OUTPUT))
            for inner in self._attributes(node):
                self.graph(inner, frozenset(now_variable), depth + 1)

    def function(self, function: _Message) -> list[str]:
        """What the nodes of a function call, also those of inner graphs."""
        outside, self.calls = self.calls, []
        before = self._bytes
        for each in function.all(_FUNCTION_NODE):
            node = _Message(message(each))
            graphs = [*self._attributes(node)]
            self.calls.append(_callee(node, _NODE_DOMAIN, _NODE_OPERATOR))
            if self._bytes > before:
                raise ModelInvalid(
                    f"{_label(node)} is in a function and has a sparse or external tensor"
                )
            for inner in graphs:
                self.graph(inner, frozenset(), 1)
            before = self._bytes
        found, self.calls = self.calls, outside
        return found

    def _attributes(self, node: _Message) -> Iterator[memoryview]:
        """The graphs in a node's attributes; its tensors are counted."""
        for each in node.all(_NODE_ATTRIBUTE):
            attribute = _Message(message(each), _NUMBERS)
            tensors = [attribute.only(_TENSOR, "a tensor"), *attribute.all(_TENSORS)]
            sparse = [attribute.only(_SPARSE, "a sparse tensor"), *attribute.all(_SPARSES)]
            graphs = [attribute.only(_GRAPH, "a graph"), *attribute.all(_GRAPHS)]
            for tensor in tensors:
                if tensor is not None:
                    self._tensor(message(tensor), _label(node))
            for tensor in sparse:
                if tensor is not None:
                    self._sparse(message(tensor), _label(node))
            yield from (message(graph) for graph in graphs if graph is not None)

    def _tensor(self, content: memoryview, owner: str) -> str:
        """The tensor's name. What lies in the file itself is no larger than the file."""
        tensor = _Message(content)
        name = tensor.last_text(_NAME)
        if tensor.all(_EXTERNAL):
            self._add(tensor, _DIMS, tensor, owner or f"initializer {name!r}")
        return name

    def _sparse(self, content: memoryview, owner: str) -> str:
        sparse = _Message(content)
        values = _Message(sparse.only(_SPARSE_VALUES, "values") or memoryview(b""))
        name = values.last_text(_NAME)
        self._add(sparse, _SPARSE_DIMS, values, owner or f"sparse initializer {name!r}")
        return name

    def _add(self, shaped: _Message, dims: int, typed: _Message, owner: str) -> None:
        shape = [size for value in shaped.all(dims) for size in varints(value)]
        kinds = typed.all(_TYPE)
        kind = kinds[-1] if kinds and isinstance(kinds[-1], int) else 0
        size = math.prod(shape) * _ITEM_BYTES.get(kind, _LONGEST_ITEM)
        self._take(size, f"{owner} has the shape {_short(shape)}")

    def _take(self, size: int, what: str) -> None:
        self._bytes += size
        if self._bytes > self._allowance:
            raise ModelInvalid(
                f"{what}: with it the model's nodes, sparse and external tensors take"
                f" {self._bytes} bytes, allowed are {self._allowance} (64 MiB, and four times its"
                " files)"
            )


def _callee(owner: _Message, domain: int, name: int) -> str:
    space = owner.last_text(domain)
    return f"{'' if space == 'ai.onnx' else space}:{owner.last_text(name)}"


def _label(node: _Message) -> str:
    return f"node {node.last_text(_NODE_NAME)!r} ({node.last_text(_NODE_OPERATOR)})"


def _short(shape: list[int]) -> str:
    return f"{shape[:8]}" if len(shape) <= 8 else f"{shape[:8]} and {len(shape) - 8} more"
