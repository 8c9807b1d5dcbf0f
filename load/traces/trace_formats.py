"""Trace formats, each with its columns, parameters and reader: one of our own, and plug-ins."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from load.errors import TraceError
from load.traces.batches import ModelIndex, arrival_batch
from load.traces.blocks import Block, sort_within_window
from load.traces.parameters import FileParameters, Seed, TenantParameters
from load.traces.tables import TraceTable
from registry.policy_names import PolicyNames

_OPTIONAL: Final = ("tenant", "input_size", "output_size", "deadline_s")
_WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    name: str
    required: str
    """The required columns, for messages."""
    matches: Callable[[frozenset[str]], bool]
    """True for the columns of a file in this format."""
    parameters: type[FileParameters]
    read: Callable[[Sequence[TraceTable], Any, Seed], Iterator[pa.RecordBatch]]
    """The arrivals by time. Raises TraceErrors while it is iterated."""


def open_rows(
    rows: Callable[[Sequence[TraceTable], Any], Iterator[Block]],
    tables: Sequence[TraceTable],
    given: Any,
    _: Seed,
    *,
    window_s: float = _WINDOW_S,
) -> Iterator[pa.RecordBatch]:
    """The arrivals of a format with a row per request, which `rows` reads in the files' order.

    `window_s`: the format's largest time, in seconds, by which rows may be out of order.
    """
    given_s = given.window
    return sort_within_window(
        rows(tables, given), window_s=window_s if given_s is None else given_s
    )


def own_columns(tables: Sequence[TraceTable], given: TenantParameters) -> Iterator[Block]:
    """The columns of `TRACE_SCHEMA`; all but `at_s` and `model` are optional."""
    index = ModelIndex(given.tenant)
    for table in tables:
        optional = [name for name in _OPTIONAL if name in table.columns]
        for block in table.blocks(["at_s", "model", *optional]):
            at_s = block.numbers("at_s")
            tenants = block.names("tenant", default=given.tenant) if "tenant" in optional else None
            columns = index.columns(index.codes(block.names("model"), tenants))
            for name, default in (("input_size", 1), ("output_size", 0)):
                if name in optional:
                    columns[name] = block.whole_numbers(name, default=default)
            if "deadline_s" in optional:
                columns["deadline_s"] = block.numbers("deadline_s", default=np.nan)
                allowed = "more than 0, or empty for none"
                block.check("deadline_s", columns["deadline_s"] != 0.0, allowed)
            yield arrivals(block, at_s, **columns)


def arrivals(block: Block, at_s: NDArray[np.float64], **columns: Any) -> Block:
    return Block(block.path, block.first_row, arrival_batch(at_s, **columns))


def has_columns(*names: str) -> Callable[[frozenset[str]], bool]:
    return lambda columns: columns.issuperset(names)


_OWN: Final = Format(
    "arrivals",
    "at_s, model",
    has_columns("at_s", "model"),
    TenantParameters,
    partial(open_rows, own_columns),
)
TRACE_FORMATS: Final = PolicyNames("pilotlight.trace_formats", (_OWN.name,))


@cache
def formats() -> Mapping[str, Format]:
    """By the name that a trace specification uses. Raises PluginError."""
    plugins = (name for name in TRACE_FORMATS if name != _OWN.name)
    return {_OWN.name: _OWN} | {name: TRACE_FORMATS.load(name) for name in plugins}


def detect_format(table: TraceTable) -> Format:
    """The format with the columns of the file. Raises TraceError."""
    found = [each for each in formats().values() if each.matches(frozenset(table.columns))]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(each.name for each in found)
        raise TraceError(f"{table.path} fits {names}; name one, as in {found[0].name}:PATH")
    known = "; ".join(f"{each.name} has {each.required}" for each in formats().values())
    raise TraceError(f"{table.path} has the columns {_shown(table)}, of no known format: {known}")


def require_format(table: TraceTable, wanted: Format) -> None:
    """Raises TraceError for a file without the format's columns."""
    columns = frozenset(table.columns)
    if not wanted.matches(columns):
        others = [each.name for each in formats().values() if each.matches(columns)]
        hint = f"; it looks like {others[0]}" if others else ""
        raise TraceError(
            f"{wanted.name} needs the columns {wanted.required}; "
            f"{table.path} has {_shown(table)}{hint}"
        )


def _shown(table: TraceTable) -> str:
    names = [repr(name[:40]) for name in table.columns]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
