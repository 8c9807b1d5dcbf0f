"""The syntax of trace specifications, without their meaning.

    spec      = chain { " + " chain }
    chain     = ( source | "(" spec ")" ) { "|" transform }
    source    = FORMAT ":" PATH { "," KEY "=" VALUE } | GENERATOR ":" KEY "=" VALUE { "," … } | PATH
    transform = NAME [ "=" VALUE ] { "," KEY "=" VALUE }

Quotes, single or double, make `| + , ( )` part of a path.
"""

import re
from dataclasses import dataclass
from typing import Final

from load.errors import InvalidTraceSpec

_QUOTES: Final = "'\""
_PREFIX: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]+):(.*)", re.DOTALL)
_EXAMPLE: Final = "write a trace as in poisson:rate=5,duration=10m or azure-llm:PATH|rate=2"


@dataclass(frozen=True, slots=True)
class SpecStage:
    """A source or a transformation as written."""

    name: str
    """Empty for a bare path."""
    given: dict[str, str]
    """Parameters by name; a parameter given without a name has the name `value`."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A source, or a mix of traces, and its transformations in order."""

    source: "SpecStage | tuple[Chain, ...]"
    transforms: tuple[SpecStage, ...]


def parse_spec(text: str) -> tuple[Chain, ...]:
    """Parse a specification into the traces that it mixes. Raises InvalidTraceSpec."""
    if not isinstance(text, str):
        raise InvalidTraceSpec([f"a trace must be text, was {text!r}"])
    return tuple(_chain(part) for part in _split(text, " + "))


def _chain(text: str) -> Chain:
    source, *transforms = [part.strip() for part in _split(text, "|")]
    if not source:
        raise InvalidTraceSpec([f"a source is missing in {text.strip()!r}; {_EXAMPLE}"])
    stages = tuple(_transform(part) for part in transforms)
    if source.startswith("(") and source.endswith(")"):
        return Chain(parse_spec(source[1:-1]), stages)
    return Chain(_source(source), stages)


def _source(text: str) -> SpecStage:
    found = _PREFIX.fullmatch(text)
    name, rest = found.groups() if found else ("", text)
    first, *more = _split(rest, ",")
    if (name and re.fullmatch(r"\s*[a-z]+\s*=.*", first)) or not first.strip():
        return SpecStage(name, _pairs([first, *more] if first.strip() else more, name))
    return SpecStage(name, {"value": _unquoted(first), **_pairs(more, name or text)})


def _transform(text: str) -> SpecStage:
    first, *more = _split(text, ",")
    name, equals, value = first.partition("=")
    name = name.strip()
    if not name:
        raise InvalidTraceSpec([f"a transformation is missing after '|', was {text!r}"])
    given = {"value": _unquoted(value)} if equals else {}
    return SpecStage(name, {**given, **_pairs(more, name)})


def _pairs(parts: list[str], stage: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InvalidTraceSpec([f"{stage}: {part.strip()!r} must be of the form NAME=VALUE"])
        if key in pairs:
            raise InvalidTraceSpec([f"{stage}: {key} is given twice"])
        pairs[key] = _unquoted(value)
    return pairs


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] in _QUOTES and text[0] == text[-1]:
        return text[1:-1]
    return text


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside quotes and parentheses; raises InvalidTraceSpec if unclosed."""
    parts, start, depth, quote = [], 0, 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
            if depth < 0:
                raise InvalidTraceSpec([f"')' without '(' in {text.strip()!r}"])
        elif depth == 0 and text.startswith(separator, index) and index >= start:
            parts.append(text[start:index])
            start = index + len(separator)
    if quote or depth:
        opened = f"quote {quote}" if quote else "parenthesis"
        raise InvalidTraceSpec([f"an unclosed {opened} in {text.strip()!r}"])
    return [*parts, text[start:]]
