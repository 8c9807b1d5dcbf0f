"""CSV, JSON lines and Parquet files as blocks of columns, read block by block.

Row numbers are those of a text editor or viewer: the header of a CSV file is row 1, as are the
first line of JSON lines and the first row of Parquet. Empty lines do not count.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from load.errors import InvalidTrace, UnknownFormat, UnreadableTrace
from load.traces.batches import BATCH_ROWS
from load.traces.formats.blocks import Block
from load.traces.formats.compressed import open_uncompressed, translated_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BLOCK_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A file of which the header has been read."""

    path: str
    columns: tuple[str, ...]
    reader: Callable[[TraceTable, Sequence[str]], Iterator[Block]]
    """Reads the rows as the file encodes them."""

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """The wanted columns; as text where the file is text."""
        return self.reader(self, wanted)


def read_header(path: str) -> TraceTable:
    """Encoding and columns. Raises UnreadableTrace, and UnknownFormat for a duplicate column."""
    with open_uncompressed(path) as content:
        if content.read(4) == b"PAR1":
            return TraceTable(path, tuple(_parquet_names(path)), _parquet_blocks)
        content.seek(0)
        start = content.readline(_MAX_HEADER_BYTES)
        if start.lstrip().startswith(b"{"):
            return TraceTable(path, tuple(_json_row(path, 1, start)), _json_blocks)
        names = _csv_names(path, start)
        if not content.read(65_536).strip():
            raise UnreadableTrace(f"{path} has a header and no rows; is it the whole file?")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnknownFormat(f"{path} has the column {twice[0]!r} twice; rename one")
    return TraceTable(path, names, _csv_blocks)


def _csv_names(path: str, header: bytes) -> tuple[str, ...]:
    if not header.strip():
        raise UnreadableTrace(f"{path} has an empty first line; it must name the columns")
    try:
        return tuple(next(csv.reader([header.decode("utf-8-sig").rstrip("\r\n")])))
    except csv.Error as error:
        raise UnreadableTrace(f"{path} has a first line that is not CSV ({error})") from error


def _csv_blocks(table: TraceTable, wanted: Sequence[str]) -> Iterator[Block]:
    """Whole lines at a time: Arrow's own streaming reads up to 32 blocks ahead in a thread."""
    first_row = 2
    with open_uncompressed(table.path) as content:
        content.readline()
        while lines := content.read(_BLOCK_BYTES) + content.readline():
            if not lines.strip():
                continue
            for batch in _parse_csv(table, wanted, lines, first_row).to_batches():
                yield Block(table.path, first_row, batch)
                first_row += batch.num_rows


def _parse_csv(table: TraceTable, wanted: Sequence[str], lines: bytes, first_row: int) -> pa.Table:
    invalid: list[InvalidTrace] = []

    def on_invalid_row(row: arrow_csv.InvalidRow) -> str:
        cells = f"{row.actual_columns} of {row.expected_columns} columns"
        problem = f"has {cells}: {row.text[:80]!r}; is the file cut off?"
        invalid.append(InvalidTrace(table.path, first_row + (row.number or 1) - 1, problem))
        return "error"

    try:
        return arrow_csv.read_csv(
            pa.py_buffer(lines),
            read_options=arrow_csv.ReadOptions(
                use_threads=False, block_size=len(lines) + 1, column_names=table.columns
            ),
            parse_options=arrow_csv.ParseOptions(invalid_row_handler=on_invalid_row),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(wanted),
                column_types=dict.fromkeys(wanted, pa.string()),
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        if invalid:
            raise invalid[0] from error
        raise UnreadableTrace(f"{table.path} after row {first_row - 1}: {error}") from error


def _json_blocks(table: TraceTable, wanted: Sequence[str]) -> Iterator[Block]:
    path = table.path
    with open_uncompressed(path) as content:
        lines = enumerate((line for line in content if line.strip()), start=1)
        while chunk := list(itertools.islice(lines, BATCH_ROWS)):
            rows = [_json_row(path, row, line) for row, line in chunk]
            columns = [_json_column(path, chunk[0][0], rows, name) for name in wanted]
            yield Block(path, chunk[0][0], pa.RecordBatch.from_arrays(columns, list(wanted)))


def _json_row(path: str, row: int, line: bytes) -> dict[str, object]:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidTrace(path, row, f"is not JSON ({error}); is the file cut off?") from error
    if not isinstance(values, dict):
        raise InvalidTrace(path, row, f"must be a JSON object, was {line[:80]!r}")
    return values


def _json_column(path: str, first: int, rows: list[dict[str, object]], name: str) -> pa.Array:
    """The values as text, so that they pass the same checks as CSV."""
    values = [row.get(name) for row in rows]
    if None in values:
        raise InvalidTrace(path, first + values.index(None), f"has no {name!r}")
    return pa.array(map(str, values), pa.string())


def _parquet_names(path: str) -> list[str]:
    with _open_parquet(path) as file:
        if not file.metadata.num_rows:
            raise UnreadableTrace(f"{path} has columns and no rows")
        names: list[str] = file.schema_arrow.names
        return names


def _parquet_blocks(table: TraceTable, wanted: Sequence[str]) -> Iterator[Block]:
    first_row = 1
    with _open_parquet(table.path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=list(wanted)):
            yield Block(table.path, first_row, batch)
            first_row += batch.num_rows


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[parquet.ParquetFile]:
    try:
        with translated_errors(path), parquet.ParquetFile(path) as file:
            yield file
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise UnreadableTrace(
            f"{path} is not whole Parquet ({reason}); fetch or write it again"
        ) from error
