"""Traces from files of `TRACE_SCHEMA`'s columns: CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from load.generator.errors import BadTrace
from load.schema import TRACE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load.schema import Trace

_ROWS: Final = 8192
_OPTIONAL: Final = {"deadline_s": None, "output_size": 0, "input_size": 1, "tenant": "default"}
"""What stands in for a column that a file leaves out."""


def open_trace(text: str, *, seed: int) -> Trace:
    """The trace that `text` names: the path of a CSV or Parquet file. Raises BadTrace."""
    del seed  # a file has nothing to draw
    path = Path(text).expanduser()
    if not path.is_file():
        raise BadTrace(f"--trace: no file {text}; a trace is a CSV or Parquet file")
    return _checked(path, _batches(path))


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=_ROWS)
        else:
            yield from csv.open_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise BadTrace(f"trace {path}: not readable as CSV or Parquet: {error}") from error


def _checked(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    latest_s = 0.0
    for batch in batches:
        if not batch.num_rows:
            continue
        checked = _with_schema(path, batch)
        latest_s = _check_order(path, checked.column("at_s"), latest_s)
        yield checked


def _with_schema(path: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
    missing = {"at_s", "model"} - set(batch.schema.names)
    if missing:
        raise BadTrace(
            f"trace {path}: columns missing: {', '.join(sorted(missing))}; there are: "
            f"{', '.join(batch.schema.names)}; a trace has: {', '.join(TRACE_SCHEMA.names)}"
        )
    columns = []
    for field in TRACE_SCHEMA:
        if field.name not in batch.schema.names:
            columns.append(_filled(field, batch.num_rows))
            continue
        try:
            column = batch.column(field.name).cast(field.type)
        except (pa.ArrowException, ValueError) as error:
            raise BadTrace(f"trace {path}: column {field.name}: {error}") from error
        if column.null_count and not field.nullable:
            raise BadTrace(f"trace {path}: column {field.name} has empty cells")
        columns.append(column)
    return pa.record_batch(columns, schema=TRACE_SCHEMA)


def _filled(field: pa.Field, rows: int) -> pa.Array:
    value = _OPTIONAL[field.name]
    if value is None:
        return pa.nulls(rows, field.type)
    return pa.repeat(pa.scalar(value), rows).cast(field.type)


def _check_order(path: Path, at_s: pa.Array, latest_s: float) -> float:
    """The last time of the column; raises BadTrace if times are negative or go back."""
    times = at_s.to_numpy()
    if times[0] < latest_s or (times[1:] < times[:-1]).any():
        raise BadTrace(f"trace {path}: at_s must start at 0 or later and never go back")
    if not pc.all(pc.is_finite(at_s)).as_py():
        raise BadTrace(f"trace {path}: at_s must be finite numbers of seconds")
    return float(times[-1])
