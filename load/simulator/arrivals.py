"""A trace's record batches as rows of plain values, converted column by column for speed."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from load.errors import TraceError
from load.schema import TRACE_SCHEMA

MAX_ARRIVAL_S: Final = 366 * 86_400.0
"""A year: later times are probably calendar times, or milliseconds."""
Row = tuple[float, str, str, int, int, float | None]
"""Time, tenant, model, input size, output size, deadline counted from the arrival."""


def rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Raises TraceError: other columns, or an arrival more than a year after the trace's start."""
    if not batch.schema.equals(TRACE_SCHEMA):
        raise TraceError(
            f"a trace must have the columns {TRACE_SCHEMA.names}, was {batch.schema.names}"
        )
    check_times(batch)
    at_s, tenant, model, input_size, output_size, deadline_s = batch.columns
    return zip(
        _numbers(at_s),
        _names(tenant),
        _names(model),
        _numbers(input_size),
        _numbers(output_size),
        _numbers(deadline_s),
        strict=True,
    )


def check_times(batch: pa.RecordBatch) -> None:
    """Raises TraceError if an arrival is more than a year after the trace's start."""
    last_s = batch.column("at_s")[-1].as_py() if batch.num_rows else 0.0
    if last_s > MAX_ARRIVAL_S:
        raise TraceError(
            f"there is an arrival at {last_s:.15g} s, {last_s / 86_400:,.0f} days after the "
            f"trace's start; {MAX_ARRIVAL_S / 86_400:.0f} days at most can be simulated: times are "
            "seconds since the start, so subtract the first one with |slice=FIRSTs:, and for "
            "milliseconds add |speed=1000"
        )


def _numbers(column: pa.Array) -> Iterable[Any]:
    if column.null_count == len(column):
        return repeat(None, len(column))
    values: list[Any] = column.to_pylist() if column.null_count else column.to_numpy().tolist()
    return values


def _names(column: pa.DictionaryArray) -> list[str]:
    names = column.dictionary.to_pylist()
    return [names[at] for at in column.indices.to_numpy().tolist()]
