"""A trace written down as it is: the columns of `TRACE_SCHEMA`, as Parquet or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from load.errors import InvalidTraceName
from load.schema import TRACE_SCHEMA

if TYPE_CHECKING:
    from load.schema import Trace


def write_trace(trace: Trace, path: Path | str) -> int:
    """Write to `path`, `.parquet` or `.csv`, batch by batch; the number of arrivals."""
    match Path(path).suffix:
        case ".parquet":
            writer = parquet.ParquetWriter(path, TRACE_SCHEMA)
        case ".csv":
            writer = arrow_csv.CSVWriter(path, _plain(TRACE_SCHEMA.empty_table()).schema)
        case other:
            raise InvalidTraceName([f"{path} must end in .parquet or .csv, was {other!r}"])
    rows = 0
    with writer:
        for batch in trace:
            table = pa.Table.from_batches([batch], TRACE_SCHEMA)
            writer.write_table(
                table if isinstance(writer, parquet.ParquetWriter) else _plain(table)
            )
            rows += batch.num_rows
    return rows


def _plain(table: pa.Table) -> pa.Table:
    """Names as text, which is what CSV can hold."""
    fields = [
        field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
