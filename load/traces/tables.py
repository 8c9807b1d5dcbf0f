"""CSV and Parquet files, also gzipped, as blocks of columns, read block by block.

Row numbers are those of a text editor or viewer: the header of a CSV file is row 1, as is the first
row of Parquet. Empty lines do not count.
"""

import contextlib
import csv
import gzip
import os.path
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from io import BufferedReader
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from load.errors import InvalidTrace, TraceError, UnreadableTrace
from load.traces.batches import BATCH_ROWS
from load.traces.blocks import Block

_GZIP: Final = b"\x1f\x8b"
_REMEDY: Final = "fetch or write it again"


def matching_files(path: str) -> list[str]:
    """The file at `path`, or all files that match it as a pattern, in natural order.

    Raises TraceError and UnreadableTrace (a folder).
    """
    if "\0" in path:
        raise UnreadableTrace(f"{path!r} is not a path: it contains a NUL character")
    path = os.path.expanduser(path)
    with translated_errors(path):
        if not has_magic(path) or Path(path).exists():
            return [_require_file(path)]
        found = sorted((_require_file(name) for name in glob(path)), key=_natural_order)
    if not found:
        raise TraceError(f"no file matches {path}; check the pattern and the folder")
    return found


def _require_file(path: str) -> str:
    file = Path(path)
    try:
        if file.is_dir():
            raise UnreadableTrace(
                f"{path} is a folder; name a file in it, or a pattern such as '{file}/*.csv'"
            )
        if not file.exists():
            raise TraceError(f"there is no file {path}; check the path")
        if not file.is_file():
            raise UnreadableTrace(f"{path} is a pipe or device; a trace is read more than once")
    except (OSError, ValueError) as error:
        raise UnreadableTrace(f"{path} cannot be opened: {error}") from error
    return path


def _natural_order(path: str) -> list[tuple[int, str]]:
    """A sort key by which day 10 follows day 9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path)]


@contextlib.contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Raise UnreadableTrace for operating system and encoding errors about `path`."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UnreadableTrace(f"{path} is neither UTF-8 text nor Parquet ({error})") from error
    except OSError as error:
        raise UnreadableTrace(f"{path} cannot be read: {error}") from error


@contextlib.contextmanager
def open_uncompressed(path: str) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The content of the file, gzip unpacked. Raises UnreadableTrace, also while it is read."""
    with translated_errors(path), contextlib.ExitStack() as stack:
        raw = stack.enter_context(Path(path).open("rb"))
        head = raw.read(2)
        raw.seek(0)
        if not head:
            raise UnreadableTrace(f"{path} is empty; {_REMEDY}")
        yield stack.enter_context(_unpacked(path, raw)) if head == _GZIP else raw


@contextlib.contextmanager
def _unpacked(path: str, raw: BufferedReader) -> Iterator[gzip.GzipFile]:
    """The content of gzip data. Raises UnreadableTrace."""
    try:
        with gzip.open(raw) as content:
            yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        is_cut = isinstance(error, EOFError)
        problem = "incomplete gzip data" if is_cut else f"damaged gzip data ({error})"
        raise UnreadableTrace(f"{path}: {problem}; {_REMEDY}") from error


_BLOCK_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A file of which the header has been read."""

    path: str
    columns: tuple[str, ...]
    reader: "Callable[[TraceTable, Sequence[str]], Iterator[Block]]"
    """Reads the rows as the file encodes them."""

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """The wanted columns; as text where the file is text."""
        return self.reader(self, wanted)


def read_header(path: str) -> TraceTable:
    """Encoding and columns. Raises UnreadableTrace, and TraceError for a duplicate column."""
    with open_uncompressed(path) as content:
        if content.read(4) == b"PAR1":
            return TraceTable(path, tuple(_parquet_names(path)), _parquet_blocks)
        content.seek(0)
        start = content.readline(_MAX_HEADER_BYTES)
        names = _csv_names(path, start)
        if not content.read(65_536).strip():
            raise UnreadableTrace(f"{path} has a header and no rows; is it the whole file?")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TraceError(f"{path} has the column {twice[0]!r} twice; rename one")
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
