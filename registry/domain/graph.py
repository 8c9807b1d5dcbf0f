"""An InferenceGraph of KServe as it is served: nodes that route a request, and their conditions."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from registry.domain.model import ModelName

ROOT: Final = "root"
KIND: Final = "graph"
"""Of a workflow's definition that is a graph."""


class RouterType(StrEnum):
    SEQUENCE = "Sequence"
    """One step after the other."""
    SWITCH = "Switch"
    """The first step whose condition the request meets."""
    ENSEMBLE = "Ensemble"
    """All steps, with one document of their responses."""
    SPLITTER = "Splitter"
    """One step by chance, as the weights say."""


@dataclass(frozen=True, slots=True)
class GraphStep:
    """Either `model` or `node` is not empty."""

    name: str = ""
    model: str = ""
    node: str = ""
    protocol: str = ""
    """`v1` or `v2`; empty: as the body is written."""
    takes_response: bool = False
    """Of the step before it, in place of the node's request."""
    maps_predictions: bool = False
    """The list `predictions` of its input is sent as `instances`."""
    weight: int = 0
    """Per cent, of a Splitter's step."""
    condition: str = ""
    is_hard: bool = False
    """Where it fails, its node does."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    router: RouterType
    steps: tuple[GraphStep, ...]


@dataclass(frozen=True, slots=True)
class GraphSpec:
    name: ModelName
    nodes: Mapping[str, GraphNode]
    timeout_s: float | None = None
    owner: str = ""
    """Uid of the cluster's object; empty: it was declared otherwise."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What of it changes nothing, for who declares it."""

    def definition(self) -> dict[str, Any]:
        """The workflow that serves it: its argument is the request's body."""
        graph = {
            name: {"router": node.router.value, "steps": [asdict(step) for step in node.steps]}
            for name, node in sorted(self.nodes.items())
        }
        text = json.dumps([graph, self.timeout_s], sort_keys=True)
        return {
            "kind": KIND,
            "graph": graph,
            "function": self.name.name,
            "is_stream": False,
            "sha": hashlib.sha256(text.encode()).hexdigest()[:16],
            "deadline_s": self.timeout_s,
            "parameters": [{"name": "body", "type": "text", "required": True}],
            "owner": self.owner,
        }


def nodes_of(graph: Mapping[str, Any]) -> dict[str, GraphNode]:
    """The nodes of a definition's `graph`."""
    return {
        name: GraphNode(
            RouterType(node["router"]), tuple(GraphStep(**step) for step in node["steps"])
        )
        for name, node in graph.items()
    }


MAX_CHARACTERS: Final = 1000
MAX_PARTS: Final = 100
"""Of a path with its queries: each is a few calls deep."""
_MISSING: Final = object()
_OPERATORS: Final = ("==", "!=", "<=", ">=", "!%", "=", "<", ">", "%")
_COMPARISONS: Final = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ALLOWED: Final = (
    'keys, indexes, `*`, `?`, `#`, `#(key=="value")`, `|`, `@this` and `[@this]` are allowed'
)


class BadPathError(ValueError):
    """A condition outside of the subset; says what and what is allowed."""


class _Kind(StrEnum):
    KEY = "key"
    THIS = "@this"
    WRAP = "[@this]"
    EACH = "#"
    FIRST = "#()"
    ALL = "#()#"


@dataclass(frozen=True, slots=True)
class _Query:
    path: "tuple[_Part, ...]"
    operator: str
    """Empty: the path exists."""
    value: str


@dataclass(frozen=True, slots=True)
class _Part:
    kind: _Kind
    is_piped: bool
    """It comes after `|`: it takes the whole list that a `#` before it has made."""
    key: str = ""
    pattern: re.Pattern[str] | None = None
    query: _Query | None = None


@dataclass(frozen=True, slots=True)
class JsonPath:
    parts: tuple[_Part, ...]

    def exists(self, document: Any) -> bool:
        """As GJSON's `Get(document, path).Exists()`; a null that is there exists."""
        return _value(document, self.parts) is not _MISSING


def parse_path(text: str) -> JsonPath:
    """A condition of an InferenceGraph, in a subset of GJSON. Raises BadPathError.

    The subset (tidwall/gjson, SYNTAX.md, version 1.18): keys with `*`, `?` and escapes, indexes,
    `#`, `#(query)`, `#(query)#`, `|`, `@this` and `[@this]`. Other modifiers, multipaths, literals
    and `~` in queries are refused.
    """
    if not text.strip() or len(text) > MAX_CHARACTERS:
        raise BadPathError(f"must have 1 to {MAX_CHARACTERS} characters")
    if (parts := 1 + sum(map(text.count, ".|("))) > MAX_PARTS:
        raise BadPathError(f"has {parts} keys and queries, {MAX_PARTS} are allowed")
    return JsonPath(_parse(text))


def _parse(text: str) -> tuple[_Part, ...]:
    return tuple(_part(part, is_piped=separator == "|") for separator, part in _split(text))


def _split(text: str) -> list[tuple[str, str]]:
    """Parts with the separator before each; brackets, quotes and escapes hold theirs together."""
    parts: list[tuple[str, str]] = []
    separator, begin, at = "", 0, 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
        elif character in ".|":
            parts.append((separator, text[begin:at]))
            separator, begin, at = character, at + 1, at + 1
        elif character in _CLOSING:
            at = _end_of_bracket(text, at)
        else:
            at += 1
    parts.append((separator, text[begin:]))
    return parts


def _end_of_bracket(text: str, begin: int) -> int:
    """The position after the bracket that closes the one at `begin`."""
    open_, at = [], begin
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == '"':
            at = _end_of_quote(text, at) - 1
        elif character in _CLOSING:
            open_.append(_CLOSING[character])
        elif open_ and character == open_[-1]:
            open_.pop()
            if not open_:
                return at + 1
        at += 1
    raise BadPathError(f"has a bracket that is not closed: {text[begin : begin + 40]!r}")


def _end_of_quote(text: str, begin: int) -> int:
    if quoted := _QUOTED.match(text, begin):
        return quoted.end()
    raise BadPathError(f"has a quote that is not closed: {text[begin : begin + 40]!r}")


def _part(text: str, *, is_piped: bool) -> _Part:
    match text:
        case "":
            raise BadPathError("has an empty part: two separators, or one at an end")
        case "@this":
            return _Part(_Kind.THIS, is_piped)
        case "[@this]":
            return _Part(_Kind.WRAP, is_piped)
        case "#":
            return _Part(_Kind.EACH, is_piped)
    if text.startswith("#("):
        end = _end_of_bracket(text, 1)
        kinds = {"": _Kind.FIRST, "#": _Kind.ALL}
        if text[end:] not in kinds:
            raise BadPathError(f"has {text[end:]!r} after a query, only `#` may stand there")
        return _Part(kinds[text[end:]], is_piped, query=_query(text[2 : end - 1]))
    if text[0] in "@!{[#":
        raise BadPathError(
            f"has {text[:40]!r}, which is outside of the subset of GJSON: {_ALLOWED}"
        )
    key, pattern = _key(text)
    return _Part(_Kind.KEY, is_piped, key, pattern)


def _key(text: str) -> tuple[str, re.Pattern[str] | None]:
    """A key without its escapes, and its pattern where it has wildcards."""
    plain, at, pieces = "", 0, [""]
    has_wildcard = False
    while at < len(text):
        character = text[at]
        is_escaped = character == "\\" and at + 1 < len(text)
        if is_escaped:
            at += 1
            character = text[at]
        if is_escaped or character not in "*?":
            plain += character
            pieces[-1] += re.escape(character)
        else:
            has_wildcard = True
            if character == "?":
                pieces[-1] += "."
            else:
                pieces.append("")
        at += 1
    return plain, _pattern(pieces) if has_wildcard else None


def _pattern(pieces: Sequence[str]) -> re.Pattern[str]:
    """What stands between `*`, in order. Atomic, else many `*` would take exponential time."""
    first, *others = pieces
    if not others:
        return re.compile(first, re.DOTALL)
    between = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    return re.compile(f"{first}{between}.*{others[-1]}", re.DOTALL)


def _query(text: str) -> _Query:
    at = 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
            continue
        if character in _CLOSING:
            at = _end_of_bracket(text, at)
            continue
        operator = next((each for each in _OPERATORS if text.startswith(each, at)), "")
        if operator:
            path, value = text[:at].strip(), text[at + len(operator) :].strip()
            return _Query(_parse(path) if path else (), operator, _literal(value))
        at += 1
    if not text.strip():
        raise BadPathError("has an empty query")
    return _Query(_parse(text.strip()), "", "")


def _literal(text: str) -> str:
    if text.startswith("~"):
        raise BadPathError("has `~` in a query, which is outside of the subset of GJSON")
    if text.startswith('"') and _end_of_quote(text, 0) == len(text):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def _value(value: Any, parts: Sequence[_Part]) -> Any:
    """What the path names in the value; `_MISSING`."""
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    match first.kind:
        case _Kind.THIS:
            return _value(value, rest)
        case _Kind.WRAP:
            return _value([value], rest)
        case _Kind.KEY:
            found = _member(value, first)
            return found if found is _MISSING else _value(found, rest)
    if not isinstance(value, list):
        return _MISSING
    if first.kind is _Kind.EACH:
        return _mapped(value, rest) if rest else len(value)
    matching = (each for each in value if first.query and _matches(each, first.query))
    if first.kind is _Kind.FIRST:
        found = next(matching, _MISSING)
        return found if found is _MISSING else _value(found, rest)
    return _mapped(list(matching), rest)


def _mapped(values: list[Any], parts: Sequence[_Part]) -> Any:
    """The path of each element up to a `|`; what follows takes the list of what was there."""
    end = next((at for at, part in enumerate(parts) if part.is_piped), len(parts))
    found = [_value(each, parts[:end]) for each in values]
    return _value([each for each in found if each is not _MISSING], parts[end:])


def _member(value: Any, part: _Part) -> Any:
    if isinstance(value, list):
        if part.pattern is None and part.key.isdecimal() and int(part.key) < len(value):
            return value[int(part.key)]
        return _MISSING
    if not isinstance(value, dict):
        return _MISSING
    if part.pattern is None:
        return value.get(part.key, _MISSING)
    names = (name for name in value if part.pattern.fullmatch(name))
    return next((value[name] for name in names), _MISSING)


def _matches(element: Any, query: _Query) -> bool:
    if query.path and not isinstance(element, (dict, list)):
        return False
    value = _value(element, query.path)
    if value is _MISSING:
        return False
    if not query.operator:
        return True
    operator = "==" if query.operator == "=" else query.operator
    if isinstance(value, bool):
        return _compare_boolean(value, operator, query.value)
    if isinstance(value, (int, float)):
        return _compare(float(value), operator, _number(query.value))
    if isinstance(value, str):
        if operator.endswith("%"):
            return _is_like(value, query.value) == (operator == "%")
        return _compare(value, operator, query.value)
    return False


def _is_like(value: str, text: str) -> bool:
    plain, pattern = _key(text)
    return value == plain if pattern is None else pattern.fullmatch(value) is not None


def _number(text: str) -> float:
    """As GJSON reads it: 0 for what is no number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _compare(left: Any, operator: str, right: Any) -> bool:
    """False for operators of texts."""
    compare = _COMPARISONS.get(operator)
    return compare is not None and bool(compare(left, right))


def _compare_boolean(value: bool, operator: str, text: str) -> bool:
    """False is before true; what is neither is unequal to both, and true is not before it."""
    if operator in ("==", "!="):
        return (text == str(value).lower()) is (operator == "==")
    strictly, other = (">", "false") if value else ("<", "true")
    return operator == f"{strictly}=" or (operator == strictly and text == other)
