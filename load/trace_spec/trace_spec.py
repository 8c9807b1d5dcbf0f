"""One way to name a trace, on a command line and in YAML: `open_trace`. See docs/load.md.

A name is checked as a whole, files included, before anything is read or drawn.
"""

from __future__ import annotations

import difflib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow.compute as pc

from load.errors import InvalidTraceName, TraceError
from load.synthetic.generators import GENERATORS, generate
from load.trace_spec.grammar import Chain, SpecStage, parse_name
from load.trace_spec.named_files import generator_of
from load.traces.batches import Replay, even_batches, full_names
from load.traces.formats.compressed import files
from load.traces.formats.formats import FORMATS, recognised, require
from load.traces.formats.tables import look_at
from load.traces.merging import merged
from load.traces.parameters import Parameters, checked
from load.traces.seeds import Seed
from load.traces.transforms import attributes, deadlines, filters, mapping, scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from load.schema import Trace
    from load.traces.formats.formats import Format
    from load.traces.formats.tables import TraceTable
    from load.traces.order import Located

_P = TypeVar("_P", bound=Parameters)


@dataclass(frozen=True, slots=True)
class Transform:
    """What may follow a `|`."""

    parameters: type[Parameters]
    apply: Callable[[Trace, Any, Seed], Iterator[pa.RecordBatch]]
    renames: bool = False
    """Whether arrivals are for other models, or of other tenants, than before."""


TRANSFORMS: Final = {
    "rate": Transform(scaling.RateParameters, scaling.rate),
    "rps": Transform(scaling.MeanRateParameters, scaling.mean_rate),
    "speed": Transform(scaling.SpeedParameters, scaling.speed),
    "shift": Transform(scaling.ShiftParameters, scaling.shift),
    "slice": Transform(filters.SliceParameters, filters.slice_time),
    "limit": Transform(filters.LimitParameters, filters.limit),
    "only": Transform(filters.NamesParameters, filters.only),
    "top": Transform(filters.TopParameters, filters.top),
    "map": Transform(mapping.MapParameters, mapping.map_functions, renames=True),
    "deadline": Transform(deadlines.DeadlineParameters, deadlines.deadlines),
    "tenant": Transform(attributes.NameParameters, attributes.tenant, renames=True),
    "model": Transform(attributes.NameParameters, attributes.model, renames=True),
    "input": Transform(attributes.SizeParameters, attributes.input_size),
    "output": Transform(attributes.SizeParameters, attributes.output_size),
}
"""By the name that is used in a trace's name."""


def open_trace(text: str, *, seed: int) -> Trace:
    """The trace of that name; it can be iterated again, with the same arrivals.

    Raises InvalidTraceName (all mistakes in the name), TraceNotFound, UnreadableTrace,
    UnknownFormat; while it is iterated also InvalidTrace and UnknownModel. All are TraceErrors.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidTraceName([f"a seed must be a whole number of at least 0, was {seed!r}"])
    problems: list[str] = []
    trace = _put_together(parse_name(text), Seed(seed), problems)
    if problems:
        raise InvalidTraceName(problems)
    return Replay(partial(even_batches, trace))


def _put_together(chains: Sequence[Chain], seed: Seed, problems: list[str]) -> Trace:
    if len(chains) == 1:
        return _chained(chains[0], seed, problems)
    parts = [_chained(chain, seed.of(index), problems) for index, chain in enumerate(chains)]
    return Replay(partial(merged, parts))


def _chained(chain: Chain, seed: Seed, problems: list[str]) -> Trace:
    if isinstance(chain.source, tuple):
        trace = _put_together(chain.source, seed.of("parts"), problems)
    else:
        trace = _source(chain.source, seed.of("source"), problems)
    used: dict[str, int] = {}
    for stage in chain.transforms:
        nth = used[stage.name] = used.get(stage.name, 0) + 1
        trace = _transformed(trace, stage, seed.of(stage.name, nth), problems)
    return trace


def _transformed(trace: Trace, stage: SpecStage, seed: Seed, problems: list[str]) -> Trace:
    transform = TRANSFORMS.get(stage.name)
    if transform is None:
        problems.append(_unknown("transformation", stage.name, TRANSFORMS))
        return trace
    given = _given(transform.parameters, stage, problems)
    if isinstance(given, deadlines.DeadlineParameters) and given.latencies is not None:
        deadlines.read_latencies(given.latencies)  # so that a bad table is told at once
    return trace if given is None else Replay(partial(transform.apply, trace, given, seed))


def _source(stage: SpecStage, seed: Seed, problems: list[str]) -> Trace:
    if (name := generator_of(stage)) is not None:
        generator = GENERATORS[name]
        drawn = _given(generator.parameters, stage if stage.name else SpecStage(name, {}), problems)
        return () if drawn is None else Replay(partial(generate, generator, drawn, seed))
    if stage.name not in {"", "file", *FORMATS}:
        problems.append(_unknown("source", stage.name, [*FORMATS, *GENERATORS, "file"]))
        return ()
    if not stage.given.get("value"):
        name = stage.name or "file"
        problems.append(f"{name} needs a path, as in {name}:PATH")
        return ()
    return _file(stage, seed, problems)


def _file(stage: SpecStage, seed: Seed, problems: list[str]) -> Trace:
    tables, wanted = _tables(stage)
    given = _given(wanted.parameters, stage, problems, name=wanted.name)
    return () if given is None else Replay(partial(wanted.read, tables, given, seed))


def _tables(stage: SpecStage) -> tuple[list[TraceTable], Format]:
    tables = [look_at(path) for path in files(stage.given["value"])]
    wanted = FORMATS.get(stage.name) or recognised(tables[0])
    for table in tables:
        require(table, wanted)
    return tables, wanted


def row_of(text: str, model: str) -> tuple[str, int] | None:
    """The file and the row of it that first asks for a model, by full name, in an open trace.

    None where no row alone does: generators, counts per minute, models that were given other names.
    """
    with suppress(TraceError):  # a row that cannot be read
        for located in _located(parse_name(text)):
            found = pc.index(full_names(located.batch), model).as_py()
            if found >= 0:
                return located.path, located.first_row + found
    return None


def _located(chains: Sequence[Chain]) -> Iterator[Located]:
    for chain in chains:
        if any(TRANSFORMS[stage.name].renames for stage in chain.transforms):
            continue
        if isinstance(chain.source, tuple):
            yield from _located(chain.source)
        elif generator_of(chain.source) is None:
            tables, wanted = _tables(chain.source)
            given = checked(wanted.parameters, chain.source.given, stage=wanted.name)
            if wanted.rows is not None:
                yield from wanted.rows(tables, given)


def _given(
    kind: type[_P], stage: SpecStage, problems: list[str], *, name: str | None = None
) -> _P | None:
    found = checked(kind, stage.given, stage=name or stage.name)
    if isinstance(found, list):
        problems.extend(found)
        return None
    return found


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f", but {near[0]}" if near else ""
    return f"there is no {kind} {name!r}{hint}; there are: {', '.join(names)}"
