"""Filters of a trace: a time slice, the first arrivals, named models, the busiest models."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from load.errors import TraceError, UndeclaredModels, UnknownModel
from load.traces.batches import full_names, times_s, with_column
from load.traces.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from load.schema import Trace
    from load.traces.parameters import Value
    from load.traces.seeds import Seed


def slice_time(
    trace: Trace, given: Value[tuple[float, float]], _: Seed
) -> Iterator[pa.RecordBatch]:
    """Arrivals in [start, end), with times relative to the start; reads no further."""
    start_s, end_s = given.value
    for batch in trace:
        at_s = times_s(batch)
        first, last = np.searchsorted(at_s, [start_s, end_s], side="left").tolist()
        if last > first:
            part = batch.slice(first, last - first)
            yield with_column(part, "at_s", times_s(part) - start_s)
        if last < len(at_s):
            return


def limit(trace: Trace, given: Value[int], _: Seed) -> Iterator[pa.RecordBatch]:
    """The first `value` arrivals."""
    left = given.value
    for batch in trace:
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def only(trace: Trace, given: Value[tuple[str, ...]], _: Seed) -> Iterator[pa.RecordBatch]:
    """The arrivals of these models; at the end raises UnknownModel for one that never occurred."""
    seen: dict[str, None] = {}
    for batch in trace:
        names = batch.column("model").dictionary_decode()
        seen |= dict.fromkeys(pc.unique(names).to_pylist())
        kept = batch.filter(pc.is_in(names, pa.array(given.value)))
        if kept.num_rows:
            yield kept
    if missing := [name for name in dict.fromkeys(given.value) if name not in seen]:
        raise UnknownModel(f"only: no arrival is for {_listed(missing)}; {_available(seen)}")


def top(trace: Trace, given: Value[int], _: Seed) -> Iterator[pa.RecordBatch]:
    """The arrivals of the `value` busiest models, ties by name; reads the trace twice."""
    ranked = sorted(summarise(trace).models.items(), key=lambda item: (-item[1], item[0]))
    chosen = pa.array([name for name, _ in ranked[: given.value]], pa.string())
    for batch in trace:
        kept = batch.filter(pc.is_in(full_names(batch), chosen))
        if kept.num_rows:
            yield kept


def declared_only(trace: Trace, declared: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The unchanged trace. Raises UndeclaredModels at the first arrival for another model.

    `declared` holds full names, `tenant/model`.
    """
    known = pa.array(sorted(declared), pa.string())
    before = 0
    batches = iter(trace)
    for batch in batches:
        names = full_names(batch)
        is_known = pc.is_in(names, known).to_numpy(zero_copy_only=False)
        if not is_known.all():
            index = int(np.argmin(is_known))
            raise UndeclaredModels(
                f"arrival {before + index + 1} (at {times_s(batch)[index]:.6g} s) is for "
                f"{names[index].as_py()}, which is not declared; {_available(sorted(declared))}",
                _undeclared(chain([batch], batches), known),
            )
        before += batch.num_rows
        yield batch


def _undeclared(trace: Trace, known: pa.Array) -> list[str]:
    """Models that are not among `known`, by first arrival, up to the first unreadable row."""
    found: dict[str, None] = {}
    with suppress(TraceError):
        for batch in trace:
            names = pc.unique(full_names(batch))
            found |= dict.fromkeys(names.filter(pc.invert(pc.is_in(names, known))).to_pylist())
    return list(found)


def _available(names: Collection[str]) -> str:
    return f"there are: {_listed(names)}" if names else "there are none"


def _listed(names: Collection[str]) -> str:
    shown = list(names)[:8]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
