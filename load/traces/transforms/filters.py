"""Less of a trace: a slice of time, the first arrivals, some models, the busiest models."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

from load.errors import TraceError, UndeclaredModels, UnknownModel
from load.traces.batches import full_names, replaced, times
from load.traces.parameters import Count, NameList, Parameters
from load.traces.summary import summarise
from registry.inference_service.durations import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from load.schema import Trace
    from load.traces.seeds import Seed


def _slice_bounds(text: object) -> object:
    """`START:END`, either of which may be missing."""
    if not isinstance(text, str):
        return text
    start, colon, end = text.partition(":")
    if not colon:
        raise ValueError("START:END in durations, such as 10m:1h, 10m: or :1h")
    try:
        until = parse_duration_s(end) if end else np.inf
        return parse_duration_s(start) if start else 0.0, until
    except ValueError:
        raise ValueError("START:END in durations, such as 10m:1h, 10m: or :1h") from None


class SliceParameters(Parameters):
    """Seconds from and until."""

    value: Annotated[
        tuple[float, Annotated[float, Field(allow_inf_nan=True)]], BeforeValidator(_slice_bounds)
    ]

    @model_validator(mode="after")
    def _forwards(self) -> SliceParameters:
        if self.value[1] <= self.value[0]:
            raise ValueError("should end after it starts")
        return self


class LimitParameters(Parameters):
    """A number of arrivals."""

    value: Annotated[int, Field(ge=1)]


class TopParameters(Parameters):
    """A number of models."""

    value: Count


class NamesParameters(Parameters):
    """Names of models."""

    value: NameList


def slice_time(trace: Trace, given: SliceParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """Arrivals in [start, end), their times counted from the start; reads no further."""
    start_s, end_s = given.value
    for batch in trace:
        at_s = times(batch)
        first, last = np.searchsorted(at_s, [start_s, end_s], side="left").tolist()
        if last > first:
            part = batch.slice(first, last - first)
            yield replaced(part, "at_s", times(part) - start_s)
        if last < len(at_s):
            return


def limit(trace: Trace, given: LimitParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """The first `value` arrivals."""
    left = given.value
    for batch in trace:
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def only(trace: Trace, given: NamesParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """The arrivals of these models; at the end raises UnknownModel for one that never occurred."""
    missing = dict.fromkeys(given.value)
    seen: dict[str, None] = {}
    for batch in trace:
        names = batch.column("model").dictionary_decode()
        for name in pc.unique(names).to_pylist():
            seen[name] = None
            missing.pop(name, None)
        kept = batch.filter(pc.is_in(names, pa.array(given.value)))
        if kept.num_rows:
            yield kept
    if missing:
        raise UnknownModel(f"only: no arrival is for {_listed(missing)}; {_has(seen)}")


def top(trace: Trace, given: TopParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """The arrivals of the `value` busiest models, by name where equal; reads the trace twice."""
    ranked = sorted(summarise(trace).models.items(), key=lambda item: (-item[1], item[0]))
    chosen = pa.array([name for name, _ in ranked[: given.value]], pa.string())
    for batch in trace:
        kept = batch.filter(pc.is_in(full_names(batch), chosen))
        if kept.num_rows:
            yield kept


def declared_only(trace: Trace, declared: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The trace as it is. Raises UndeclaredModels at the first arrival for one not in `declared`.

    `declared` holds full names, `tenant/model`.
    """
    known = pa.array(sorted(declared), pa.string())
    before = 0
    coming = iter(trace)
    for batch in coming:
        names = full_names(batch)
        good = pc.is_in(names, known).to_numpy(zero_copy_only=False)
        if not good.all():
            index = int(np.argmin(good))
            raise UndeclaredModels(
                f"arrival {before + index + 1} (at {times(batch)[index]:.6g} s) is for "
                f"{names[index].as_py()}, which is not declared; {_has(sorted(declared))}",
                _others(chain([batch], coming), known),
            )
        before += batch.num_rows
        yield batch


def _others(trace: Iterable[pa.RecordBatch], known: pa.Array) -> list[str]:
    """Models that are not among the known ones, by first arrival, as far as the trace is good."""
    found: dict[str, None] = {}
    with suppress(TraceError):
        for batch in trace:
            names = pc.unique(full_names(batch))
            found |= dict.fromkeys(names.filter(pc.invert(pc.is_in(names, known))).to_pylist())
    return list(found)


def _has(names: Collection[str]) -> str:
    return f"there are: {_listed(names)}" if names else "there are none"


def _listed(names: Collection[str]) -> str:
    shown = list(names)[:8]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
