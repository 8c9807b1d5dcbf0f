"""Trace specifications: the text that describes a trace in commands and YAML (docs/load.md).

A specification is validated as a whole, files included, before anything is read or drawn.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from load.errors import InvalidTraceSpec, TraceError
from load.schema import Trace
from load.synthetic import GENERATORS, generate
from load.trace_spec.grammar import Chain, SpecStage, parse_spec
from load.traces.batches import ReplayableTrace, even_batches, full_names
from load.traces.formats.blocks import Block
from load.traces.formats.formats import FORMATS, Format, detect_format, require_format
from load.traces.formats.tables import TraceTable, matching_files, read_header
from load.traces.order import merged
from load.traces.parameters import (
    Count,
    DurationS,
    Name,
    NameList,
    Parameters,
    Positive,
    Rate,
    SizeRange,
    TimeSlice,
    Value,
    validated,
)
from load.traces.seeds import Seed
from load.traces.transforms import attributes, filters
from load.traces.transforms.attributes import DeadlineParameters, MapParameters


@dataclass(frozen=True, slots=True)
class Transform:
    """A transformation that may follow a `|`."""

    parameters: type[Parameters]
    apply: Callable[[Trace, Any, Seed], Iterator[pa.RecordBatch]]
    renames: bool = False
    """Whether arrivals get other models or tenants."""


TRANSFORMS: Final = {
    "rate": Transform(Value[filters.RateFactor], filters.rate),
    "rps": Transform(Value[Rate], filters.mean_rate),
    "speed": Transform(Value[filters.SpeedFactor], filters.speed),
    "shift": Transform(Value[DurationS], filters.shift),
    "slice": Transform(Value[TimeSlice], filters.slice_time),
    "limit": Transform(Value[Positive], filters.limit),
    "only": Transform(Value[NameList], filters.only),
    "top": Transform(Value[Count], filters.top),
    "map": Transform(MapParameters, attributes.map_functions, renames=True),
    "deadline": Transform(DeadlineParameters, attributes.set_deadline),
    "tenant": Transform(Value[Name], partial(attributes.set_name, "tenant"), renames=True),
    "model": Transform(Value[Name], partial(attributes.set_name, "model"), renames=True),
    "input": Transform(Value[SizeRange], partial(attributes.set_size, "input_size")),
    "output": Transform(Value[SizeRange], partial(attributes.set_size, "output_size")),
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
    if isinstance(given, DeadlineParameters) and given.latencies is not None:
        attributes.read_latencies(given.latencies)  # reports a bad table before anything is drawn
    return trace if given is None else ReplayableTrace(partial(transform.apply, trace, given, seed))


def _source(stage: SpecStage, seed: Seed, problems: list[str]) -> Trace:
    if (name := _generator_of(stage)) is not None:
        parameters = stage.given if stage.name else {}
        drawn = validated(GENERATORS[name], parameters, stage=name, problems=problems)
        return () if drawn is None else ReplayableTrace(partial(generate, drawn, seed))
    if stage.name not in {"", "file", *FORMATS}:
        problems.append(_unknown("source", stage.name, [*FORMATS, *GENERATORS, "file"]))
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
    wanted = FORMATS.get(stage.name) or detect_format(tables[0])
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
    tables = [each.given["latencies"] for each in chain.transforms if "latencies" in each.given]
    if isinstance(chain.source, tuple):
        return tables + [path for part in chain.source for path in _files_of(part)]
    path = chain.source.given.get("value")
    if path is None or _generator_of(chain.source) is not None:
        return tables
    return tables + matching_files(path)


def row_of(text: str, model: str) -> tuple[str, int] | None:
    """The file and row that first requests a model, by full name, in a trace that was opened.

    None where no single row does: generators, counts per minute, renamed models.
    """
    with suppress(TraceError):  # a row that cannot be read
        for block in _blocks(parse_spec(text)):
            found = pc.index(full_names(block.batch), model).as_py()
            if found >= 0:
                return block.path, block.first_row + found
    return None


def _blocks(chains: Sequence[Chain]) -> Iterator[Block]:
    for chain in chains:
        if any(TRANSFORMS[stage.name].renames for stage in chain.transforms):
            continue
        if isinstance(chain.source, tuple):
            yield from _blocks(chain.source)
        elif _generator_of(chain.source) is None:
            tables, wanted = _tables(chain.source)
            if wanted.rows is not None:
                parameters = wanted.parameters.model_validate(chain.source.given)
                yield from wanted.rows(tables, parameters)
