"""What a run writes: one row per request, gathered into record batches, in flat memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from load.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Records:
    """Rows of `RECORD_SCHEMA` as tuples, until they are taken as a batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self.add = self._rows.append
        """Take in one row."""

    def __len__(self) -> int:
        return len(self._rows)

    def take(self) -> pa.RecordBatch:
        """All rows since the last call."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(RECORD_SCHEMA)
        arrays = [
            _array(column, field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)
        ]
        self._rows.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _array(values: tuple[Any, ...], type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, type_)


@contextmanager
def parquet_writer(path: Path) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Write record batches to a Parquet file as they come."""
    with pq.ParquetWriter(path, RECORD_SCHEMA) as writer:
        yield writer.write_batch
