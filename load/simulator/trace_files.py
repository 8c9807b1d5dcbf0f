"""A trace from a plain file with the columns of `TRACE_SCHEMA`: CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from load.schema import TRACE_SCHEMA
from load.simulator.errors import WrongTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load.schema import Trace

_SUFFIXES = (".csv", ".parquet")
_OPTIONAL = {"tenant": "default", "input_size": 1, "output_size": 0, "deadline_s": None}
"""What a column is taken to hold where a file does not have it."""


def open_trace(text: str, *, seed: int) -> Trace:
    """The arrivals in a file, read as they are wanted. Raises WrongTrace."""
    del seed  # a file says everything
    path = Path(text)
    if path.suffix not in _SUFFIXES:
        raise WrongTrace(f"a trace must be a file of {' or '.join(_SUFFIXES)}, was {text!r}")
    if not path.is_file():
        raise WrongTrace(f"trace {text!r} is no file")
    return _batches(path)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        if path.suffix == ".csv":
            with pa_csv.open_csv(path) as reader:
                for batch in reader:
                    yield _typed(path, batch)
        else:
            for batch in pq.ParquetFile(path).iter_batches():
                yield _typed(path, batch)
    except (pa.ArrowException, OSError) as error:
        raise WrongTrace(f"{path}: {error}") from error


def _typed(path: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
    if unknown := set(batch.schema.names) - set(TRACE_SCHEMA.names):
        raise WrongTrace(
            f"{path}: columns must be among {', '.join(TRACE_SCHEMA.names)}, "
            f"was also {', '.join(sorted(unknown))}"
        )
    columns = []
    for field in TRACE_SCHEMA:
        if field.name in batch.schema.names:
            column = batch.column(field.name)
        elif field.name in _OPTIONAL:
            plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            column = pa.array([_OPTIONAL[field.name]] * batch.num_rows, plain)
        else:
            raise WrongTrace(f"{path}: column {field.name} is missing")
        if not field.nullable and column.null_count:
            raise WrongTrace(f"{path}: column {field.name} must not be empty anywhere")
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=TRACE_SCHEMA)
