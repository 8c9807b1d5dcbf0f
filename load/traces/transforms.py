"""Transformations of traces: which arrivals are kept or copied, when they are, their attributes.

A deadline is the same for all, or follows from the model's latency: as in the simulator of
Blinowski et al. 2024, twice the latency plus a time between 0.5 and 1 s, drawn once per model. A
function is a pair of tenant and model of the original trace. Source of maps: Zhang et al. 2025,
section 8 (round robin).
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain, pairwise
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

from load.errors import TraceError, UndeclaredModels
from load.schema import Trace
from load.traces.batches import (
    BATCH_ROWS,
    DEFAULT_TENANT,
    NameColumn,
    constant_column,
    even_batches,
    full_names,
    summarise,
    times_s,
    with_column,
)
from load.traces.parameters import (
    DurationRange,
    Name,
    NameList,
    NotNegative,
    Parameters,
    PositiveS,
    Seed,
    Value,
)


def set_name(column: str, trace: Trace, given: Value[str], _: Seed) -> Iterator[pa.RecordBatch]:
    """One tenant or one model for all arrivals."""
    for batch in trace:
        yield with_column(batch, column, constant_column(given.value, batch.num_rows))


def set_size(
    column: str, trace: Trace, given: Value[tuple[int, int]], seed: Seed
) -> Iterator[pa.RecordBatch]:
    """Sizes in items or tokens, uniform between two bounds."""
    rng = seed.rng()
    for batch in trace:
        sizes = rng.integers(*given.value, size=batch.num_rows, endpoint=True)
        yield with_column(batch, column, pa.array(sizes, pa.int64()))


class DeadlineParameters(Parameters):
    """`value` is a duration for all arrivals, or `latency` for the rule by model."""

    value: Annotated[
        PositiveS | None, BeforeValidator(lambda text: None if text == "latency" else text)
    ]
    latency: PositiveS | None = None
    """Latency of every model."""
    factor: NotNegative = 2.0
    slack: DurationRange = Field(default=(0.5, 1.0))

    @model_validator(mode="after")
    def _latency_is_known(self) -> "DeadlineParameters":
        if (self.value is None) != (self.latency is not None):
            raise ValueError("should be a duration, or latency with latency=…")
        return self


def set_deadline(trace: Trace, given: DeadlineParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """Every arrival with a deadline."""

    def deadline_s(model: str) -> float:
        if given.latency is None:
            return given.value or 0.0
        return model_deadline_s(
            given.latency, factor=given.factor, slack_s=given.slack, seed=seed.derive(model)
        )

    for batch in trace:
        models = batch.column("model")
        codes = models.indices.to_numpy()
        by_code = np.full(len(models.dictionary), np.nan)
        for code in np.unique(codes).tolist():
            by_code[code] = deadline_s(models.dictionary[code].as_py())
        yield with_column(batch, "deadline_s", pa.array(by_code[codes]))


def model_deadline_s(
    latency_s: float, *, factor: float, slack_s: tuple[float, float], seed: Seed
) -> float:
    """Factor x latency + uniform(slack); the same seed gives the same deadline."""
    return factor * latency_s + float(seed.rng().uniform(*slack_s))


def _names_or_count(text: object) -> object:
    """`20` means model-0 to model-19; any other text is a list of names."""
    if isinstance(text, str) and text.isdigit():
        if not 1 <= int(text) <= 1_000_000:
            raise ValueError("a number of models from 1 to 1000000, or names as in 'a/b'")
        return tuple(f"model-{index}" for index in range(int(text)))
    return tuple(text.split("/")) if isinstance(text, str) else text


class MapParameters(Parameters):
    """`value` is a number of models, or their names separated by slashes."""

    value: Annotated[NameList, BeforeValidator(_names_or_count)]
    tenant: Name = DEFAULT_TENANT


def map_functions(trace: Trace, given: MapParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """Set each arrival's model to that of its function, in turn.

    Functions are numbered in order of their first arrival. All models belong to one tenant.
    """
    functions, models = NameColumn(), NameColumn(given.value)
    for batch in trace:
        model = functions.codes(full_names(batch)) % np.int32(len(given.value))
        mapped = with_column(batch, "model", models.column(model))
        yield with_column(mapped, "tenant", constant_column(given.tenant, batch.num_rows))


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
    """The arrivals of these models; at the end raises TraceError for one that never occurred."""
    seen: dict[str, None] = {}
    for batch in trace:
        names = batch.column("model").dictionary_decode()
        seen |= dict.fromkeys(pc.unique(names).to_pylist())
        kept = batch.filter(pc.is_in(names, pa.array(given.value)))
        if kept.num_rows:
            yield kept
    if missing := [name for name in dict.fromkeys(given.value) if name not in seen]:
        raise TraceError(f"only: no arrival is for {_listed(missing)}; {_available(seen)}")


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


MAX_COPIES: Final = 10_000
"""Copies of one arrival: beyond it, too little of the original trace is left."""
RateFactor = Annotated[float, Field(gt=0, le=MAX_COPIES)]
SpeedFactor = Annotated[float, Field(ge=1e-6, le=1e6)]


def speed(trace: Trace, given: Value[float], _: Seed) -> Iterator[pa.RecordBatch]:
    """Time passes `value` times as fast; deadlines are unchanged."""
    for batch in trace:
        yield with_column(batch, "at_s", times_s(batch) / given.value)


def shift(trace: Trace, given: Value[float], _: Seed) -> Iterator[pa.RecordBatch]:
    """All arrivals `value` seconds later, for use in mixes of traces."""
    for batch in trace:
        yield with_column(batch, "at_s", times_s(batch) + given.value)


def rate(trace: Trace, given: Value[float], seed: Seed) -> Iterator[pa.RecordBatch]:
    """`value` times as many arrivals in the same time.

    Each arrival is copied `value` times on average: the whole part always, one more with the
    fraction as probability. Copies are placed uniformly between the arrival and the next one, which
    keeps the trace's own variations of the rate.
    """
    return _copied(trace, given.value, seed)


def mean_rate(trace: Trace, given: Value[float], seed: Seed) -> Iterator[pa.RecordBatch]:
    """The rate scaled to a mean of `value` requests per second; reads the trace twice.

    Source: Zhang et al. 2025, section 8. The mean is over the time until the last arrival.
    """
    total = summarise(trace)
    if not total.last_s > 0.0:
        raise TraceError(
            f"rps cannot scale a trace whose arrivals are all at its start; it has {total.arrivals}"
        )
    factor = given.value * total.last_s / total.arrivals
    if factor > MAX_COPIES:
        raise TraceError(
            f"rps={given.value:g} is {factor:.6g} times the trace's own rate; at most {MAX_COPIES}"
        )
    return _copied(trace, factor, seed)


def _copied(trace: Trace, factor: float, seed: Seed) -> Iterator[pa.RecordBatch]:
    extra_copy, places = seed.derive("copies").rng(), seed.derive("places").rng()
    whole, fraction = divmod(factor, 1.0)
    batches = even_batches(trace, max(int(BATCH_ROWS / factor), 1))
    for batch, following in pairwise(chain(batches, [None])):
        at_s = times_s(batch)
        copies = int(whole) + (extra_copy.random(len(at_s)) < fraction).astype(np.int64)
        row = np.repeat(np.arange(len(at_s)), copies)
        if not len(row):
            continue
        is_original = np.concatenate([[True], row[1:] != row[:-1]])
        next_s = at_s[-1] if following is None else times_s(following)[0]
        gap_s = np.append(at_s[1:], next_s) - at_s
        place = np.where(is_original, 0.0, places.random(len(row)))
        moved_s = np.minimum(at_s[row] + place * gap_s[row], at_s[row] + gap_s[row])
        order = np.argsort(moved_s, kind="stable")
        yield with_column(batch.take(pa.array(row[order])), "at_s", moved_s[order])
