"""CSV, JSON lines and Parquet as blocks of columns, read as they are needed.

Rows are counted as a reader of the file would: the header of a CSV file is row 1, the first line of
JSON lines and the first row of Parquet are row 1. Empty lines do not count.
"""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from load.errors import InvalidTrace, TraceError, UnknownFormat, UnreadableTrace
from load.traces.formats.compressed import opened, reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BLOCK_BYTES: Final = 1 << 20
_BLOCK_ROWS: Final = 16_384
_HEADER_BYTES: Final = 1 << 20


class FileKind(StrEnum):
    """How the rows are written."""

    CSV = "CSV"
    JSON_LINES = "JSON lines"
    PARQUET = "Parquet"


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A file whose first bytes were looked at."""

    path: str
    kind: FileKind
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a file; `first_row` is the number of the first."""

    path: str
    first_row: int
    columns: pa.RecordBatch


def look_at(path: str) -> TraceTable:
    """What the file holds. Raises UnreadableTrace, and UnknownFormat without rows or columns."""
    with opened(path) as content:
        if content.read(4) == b"PAR1":
            return TraceTable(path, FileKind.PARQUET, tuple(_parquet_names(path)))
        content.seek(0)
        start = content.readline(_HEADER_BYTES)
        if start.lstrip().startswith(b"{"):
            return TraceTable(path, FileKind.JSON_LINES, tuple(_json_row(path, 1, start)))
        names = _csv_names(path, start)
        if not content.read(65_536).strip():
            raise UnreadableTrace(f"{path} has a header and no rows; is it the whole file?")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnknownFormat(f"{path} has the column {twice[0]!r} twice; rename one")
    return TraceTable(path, FileKind.CSV, names)


def _csv_names(path: str, header: bytes) -> tuple[str, ...]:
    if not header.strip():
        raise UnreadableTrace(f"{path} has nothing in its first line; it must name the columns")
    try:
        return tuple(next(csv.reader([header.decode("utf-8-sig").rstrip("\r\n")])))
    except csv.Error as error:
        raise UnreadableTrace(f"{path} has a first line that is not CSV ({error})") from error


def blocks(table: TraceTable, wanted: Sequence[str]) -> Iterator[Block]:
    """The wanted columns, block by block; text where the file holds text."""
    match table.kind:
        case FileKind.CSV:
            return _csv_blocks(table, wanted)
        case FileKind.JSON_LINES:
            return _json_blocks(table.path, wanted)
        case FileKind.PARQUET:
            return _parquet_blocks(table.path, wanted)


def _csv_blocks(table: TraceTable, wanted: Sequence[str]) -> Iterator[Block]:
    """Some whole lines at a time: Arrow's own streaming reads up to 32 blocks ahead in a thread."""
    first_row = 2
    with opened(table.path) as content:
        content.readline()
        while lines := content.read(_BLOCK_BYTES) + content.readline():
            if not lines.strip():
                continue
            for batch in _csv_lines(table, wanted, lines, first_row).to_batches():
                yield Block(table.path, first_row, batch)
                first_row += batch.num_rows


def _csv_lines(table: TraceTable, wanted: Sequence[str], lines: bytes, first_row: int) -> pa.Table:
    bad: list[tuple[int, str]] = []

    def remember(row: arrow_csv.InvalidRow) -> str:
        cells = f"{row.actual_columns} of {row.expected_columns} columns"
        problem = f"has {cells}: {row.text[:80]!r}; is the file cut off?"
        bad.append((first_row + (row.number or 1) - 1, problem))
        return "error"

    try:
        return arrow_csv.read_csv(
            pa.py_buffer(lines),
            read_options=arrow_csv.ReadOptions(
                use_threads=False, block_size=len(lines) + 1, column_names=table.columns
            ),
            parse_options=arrow_csv.ParseOptions(invalid_row_handler=remember),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(wanted),
                column_types=dict.fromkeys(wanted, pa.string()),
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        if bad:
            raise InvalidTrace(table.path, *bad[0]) from error
        raise UnreadableTrace(f"{table.path} after row {first_row - 1}: {error}") from error


def _json_blocks(path: str, wanted: Sequence[str]) -> Iterator[Block]:
    with opened(path) as content:
        lines = enumerate((line for line in content if line.strip()), start=1)
        while some := list(itertools.islice(lines, _BLOCK_ROWS)):
            rows = [_json_row(path, row, line) for row, line in some]
            columns = [_json_column(path, some[0][0], rows, name) for name in wanted]
            yield Block(path, some[0][0], pa.RecordBatch.from_arrays(columns, list(wanted)))


def _json_row(path: str, row: int, line: bytes) -> dict[str, object]:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidTrace(path, row, f"is not JSON ({error}); is the file cut off?") from error
    if not isinstance(values, dict):
        raise InvalidTrace(path, row, f"must be a JSON object, was {line[:80]!r}")
    return values


def _json_column(path: str, first: int, rows: list[dict[str, object]], name: str) -> pa.Array:
    """As text, so that the same checks apply as to CSV."""
    texts = []
    for number, row in enumerate(rows, start=first):
        value = row.get(name)
        if value is None:
            raise InvalidTrace(path, number, f"has no {name!r}")
        texts.append(value if isinstance(value, str) else str(value))
    return pa.array(texts, pa.string())


def _parquet_names(path: str) -> list[str]:
    with reading(path):
        try:
            with parquet.ParquetFile(path) as file:
                if not file.metadata.num_rows:
                    raise UnreadableTrace(f"{path} has columns and no rows")
                names: list[str] = file.schema_arrow.names
                return names
        except pa.ArrowException as error:
            raise _bad_parquet(path, error) from error


def _parquet_blocks(path: str, wanted: Sequence[str]) -> Iterator[Block]:
    first_row = 1
    with reading(path), parquet.ParquetFile(path) as file:
        try:
            for batch in file.iter_batches(_BLOCK_ROWS, columns=list(wanted)):
                yield Block(path, first_row, batch)
                first_row += batch.num_rows
        except pa.ArrowException as error:
            raise _bad_parquet(path, error) from error


def _bad_parquet(path: str, error: Exception) -> TraceError:
    first_line = str(error).partition("\n")[0]
    return UnreadableTrace(f"{path} is not whole Parquet ({first_line}); fetch or write it again")
