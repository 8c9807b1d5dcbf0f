"""Trace specifications: the text that describes a trace in commands and YAML (docs/load.md).

A specification is validated as a whole, files included, before anything is read or drawn.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from load.errors import InvalidTraceSpec
from load.schema import Trace
from load.synthetic import GENERATORS, generate
from load.traces import transforms
from load.traces.batches import ReplayableTrace, even_batches
from load.traces.blocks import merged
from load.traces.parameters import (
    Count,
    DurationS,
    Name,
    NameList,
    Parameters,
    Positive,
    Rate,
    Seed,
    SizeRange,
    TimeSlice,
    Value,
    validated,
)
from load.traces.tables import TraceTable, matching_files, read_header
from load.traces.trace_formats import Format, detect_format, formats, require_format
from load.traces.transforms import DeadlineParameters, MapParameters

_QUOTES: Final = "'\""
_PREFIX: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]+):(.*)", re.DOTALL)
_EXAMPLE: Final = "write a trace as in poisson:rate=5,duration=10m or arrivals:PATH|rate=2"


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
    """Parse a specification into the traces that it mixes. Raises InvalidTraceSpec.

        spec      = chain { " + " chain }
        chain     = ( source | "(" spec ")" ) { "|" transform }
        source    = FORMAT ":" PATH { "," KEY "=" VALUE } | PATH
                  | GENERATOR ":" KEY "=" VALUE { "," … }
        transform = NAME [ "=" VALUE ] { "," KEY "=" VALUE }

    Quotes, single or double, make `| + , ( )` part of a path.
    """
    if not isinstance(text, str):
        raise InvalidTraceSpec([f"a trace must be text, was {text!r}"])
    return tuple(_parsed_chain(part) for part in _split(text, " + "))


def _parsed_chain(text: str) -> Chain:
    source, *transforms = [part.strip() for part in _split(text, "|")]
    if not source:
        raise InvalidTraceSpec([f"a source is missing in {text.strip()!r}; {_EXAMPLE}"])
    stages = tuple(_transform(part) for part in transforms)
    if source.startswith("(") and source.endswith(")"):
        return Chain(parse_spec(source[1:-1]), stages)
    return Chain(_parsed_source(source), stages)


def _parsed_source(text: str) -> SpecStage:
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


@dataclass(frozen=True, slots=True)
class Transform:
    """A transformation that may follow a `|`."""

    parameters: type[Parameters]
    apply: Callable[[Trace, Any, Seed], Iterator[pa.RecordBatch]]


TRANSFORMS: Final = {
    "rate": Transform(Value[transforms.RateFactor], transforms.rate),
    "rps": Transform(Value[Rate], transforms.mean_rate),
    "speed": Transform(Value[transforms.SpeedFactor], transforms.speed),
    "shift": Transform(Value[DurationS], transforms.shift),
    "slice": Transform(Value[TimeSlice], transforms.slice_time),
    "limit": Transform(Value[Positive], transforms.limit),
    "only": Transform(Value[NameList], transforms.only),
    "top": Transform(Value[Count], transforms.top),
    "map": Transform(MapParameters, transforms.map_functions),
    "deadline": Transform(DeadlineParameters, transforms.set_deadline),
    "tenant": Transform(Value[Name], partial(transforms.set_name, "tenant")),
    "model": Transform(Value[Name], partial(transforms.set_name, "model")),
    "input": Transform(Value[SizeRange], partial(transforms.set_size, "input_size")),
    "output": Transform(Value[SizeRange], partial(transforms.set_size, "output_size")),
}
"""By the name that a trace specification uses."""


def open_trace(text: str, *, seed: int) -> Trace:
    """The trace that a specification describes; the same text and seed give the same arrivals.

    Raises:
        InvalidTraceSpec: the specification has mistakes, all of which are listed.
        UnreadableTrace: a file cannot be used.

    While it is iterated also InvalidTrace. All errors are TraceErrors.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidTraceSpec([f"a seed must be a whole number of at least 0, was {seed!r}"])
    problems: list[str] = []
    trace = _mix(parse_spec(text), Seed(seed), problems)
    if problems:
        raise InvalidTraceSpec(problems)
    return ReplayableTrace(partial(even_batches, trace))


def _mix(chains: Sequence[Chain], seed: Seed, problems: list[str]) -> Trace:
    if len(chains) == 1:
        return _chain(chains[0], seed, problems)
    parts = [_chain(chain, seed.derive(index), problems) for index, chain in enumerate(chains)]
    return ReplayableTrace(partial(merged, parts))


def _chain(chain: Chain, seed: Seed, problems: list[str]) -> Trace:
    if isinstance(chain.source, tuple):
        trace = _mix(chain.source, seed.derive("parts"), problems)
    else:
        trace = _source(chain.source, seed.derive("source"), problems)
    uses: dict[str, int] = {}
    for stage in chain.transforms:
        uses[stage.name] = uses.get(stage.name, 0) + 1
        trace = _transformed(trace, stage, seed.derive(stage.name, uses[stage.name]), problems)
    return trace


def _transformed(trace: Trace, stage: SpecStage, seed: Seed, problems: list[str]) -> Trace:
    transform = TRANSFORMS.get(stage.name)
    if transform is None:
        problems.append(_unknown("transformation", stage.name, TRANSFORMS))
        return trace
    given = validated(transform.parameters, stage.given, stage=stage.name, problems=problems)
    return trace if given is None else ReplayableTrace(partial(transform.apply, trace, given, seed))


def _source(stage: SpecStage, seed: Seed, problems: list[str]) -> Trace:
    if (name := _generator_of(stage)) is not None:
        parameters = stage.given if stage.name else {}
        drawn = validated(GENERATORS[name], parameters, stage=name, problems=problems)
        return () if drawn is None else ReplayableTrace(partial(generate, drawn, seed))
    if stage.name not in {"", "file", *formats()}:
        problems.append(_unknown("source", stage.name, [*formats(), *GENERATORS, "file"]))
        return ()
    if not stage.given.get("value"):
        name = stage.name or "file"
        problems.append(f"{name} needs a path, as in {name}:PATH")
        return ()
    tables, wanted = _tables(stage)
    given = validated(wanted.parameters, stage.given, stage=wanted.name, problems=problems)
    return () if given is None else ReplayableTrace(partial(wanted.read, tables, given, seed))


def _tables(stage: SpecStage) -> tuple[list[TraceTable], Format]:
    tables = [read_header(path) for path in matching_files(stage.given["value"])]
    wanted = formats().get(stage.name) or detect_format(tables[0])
    for table in tables:
        require_format(table, wanted)
    return tables, wanted


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return f"there is no {kind} {name!r}{hint} there are: {', '.join(names)}"


def _generator_of(source: SpecStage) -> str | None:
    """The generator that a source names, with parameters or bare; None for a file."""
    name = source.name or source.given.get("value", "")
    return name if name in GENERATORS else None


def files_of(text: str) -> list[str]:
    """The paths of all files that a specification reads. Raises TraceError."""
    return [path for chain in parse_spec(text) for path in _files_of(chain)]


def _files_of(chain: Chain) -> list[str]:
    if isinstance(chain.source, tuple):
        return [path for part in chain.source for path in _files_of(part)]
    path = chain.source.given.get("value")
    return [] if path is None or _generator_of(chain.source) is not None else matching_files(path)
