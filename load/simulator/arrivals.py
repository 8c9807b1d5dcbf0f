"""A trace's record batches as rows of plain values, column by column rather than one by one."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from load.schema import TRACE_SCHEMA
from load.simulator.errors import WrongTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

Row = tuple[float, str, str, int, int, float | None]
"""Time, tenant, model, input size, output size, deadline from the arrival."""


def rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Every arrival. Raises WrongTrace where the batch has other columns."""
    if not batch.schema.equals(TRACE_SCHEMA):
        raise WrongTrace(
            f"a trace must have the columns {TRACE_SCHEMA.names}, was {batch.schema.names}"
        )
    at_s, tenant, model, input_size, output_size, deadline_s = batch.columns
    return zip(
        _numbers(at_s), _names(tenant), _names(model), _numbers(input_size),
        _numbers(output_size), _numbers(deadline_s), strict=True,
    )  # fmt: skip


def _numbers(column: pa.Array) -> Iterable[Any]:
    if column.null_count == len(column):
        return repeat(None, len(column))
    values: list[Any] = column.to_pylist() if column.null_count else column.to_numpy().tolist()
    return values


def _names(column: pa.DictionaryArray) -> list[str]:
    names = column.dictionary.to_pylist()
    return [names[at] for at in column.indices.to_numpy().tolist()]
