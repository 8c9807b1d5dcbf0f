"""Public formats with counts per minute, read as `BinCounts` in order of time.

Azure 2019 has a row per function and a file per day, and is sorted by time on disk. The rows of the
other formats are in order of time.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from typing import IO, TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from load.errors import UnsortedTrace
from load.traces.expansion import BIN_COUNT, bin_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from load.traces.expansion import BinCounts
    from load.traces.formats.blocks import Block
    from load.traces.formats.tables import TraceTable
    from load.traces.name_columns import ModelIndex

MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_MAX_COUNT: Final = 5_000_000
"""Arrivals of a function in a minute, which are drawn in memory; public counts are far below."""
_MINUTE: Final = re.compile(r"[1-9]\d{0,3}")


def azure_2019(tables: Sequence[TraceTable], index: ModelIndex) -> Iterator[BinCounts]:
    """One file per day, in the order given; tenants are owners."""
    for day, table in enumerate(tables):
        yield from sort_by_hour(_azure_2019_rows(table, day, index))


def _azure_2019_rows(table: TraceTable, day: int, index: ModelIndex) -> Iterator[BinCounts]:
    minutes = [each for each in table.columns if _MINUTE.fullmatch(each) and int(each) <= 1440]
    start_s = np.array([int(name) - 1 for name in minutes]) * MINUTE_S + day * _DAY_S
    for block in table.blocks(["HashOwner", "HashFunction", *minutes]):
        models = index.codes(block.names("HashFunction"), block.names("HashOwner"))
        yield _matrix_counts(block, minutes, start_s, models[:, None])


def sort_by_hour(unordered: Iterable[BinCounts]) -> Iterator[BinCounts]:
    """Sorts by bin, then model, through a temporary file per hour; one hour is in memory."""
    with contextlib.ExitStack() as stack:
        files: dict[int, IO[bytes]] = {}
        for counts in unordered:
            hours = (counts["start_s"] // _HOUR_S).astype(np.int64)
            for hour in np.unique(hours).tolist():
                if hour not in files:
                    files[hour] = stack.enter_context(tempfile.TemporaryFile())
                files[hour].write(counts[hours == hour].tobytes())
        for hour in sorted(files):
            files[hour].seek(0)
            rows = np.frombuffer(files[hour].read(), BIN_COUNT)
            yield rows[np.lexsort((rows["model"], rows["start_s"]))]


def gentd26_per_minute(tables: Sequence[TraceTable], index: ModelIndex) -> Iterator[BinCounts]:
    """Rows of `minute`, `model`, `count`; rows without a model belong to the model `unknown`."""

    def read(block: Block) -> tuple[NDArray[np.float64], BinCounts]:
        start_s = _minute_start_s(block)
        models = index.codes(block.names("model", default="unknown"))
        counts = bin_counts(start_s, models, block.whole_numbers("count", maximum=_MAX_COUNT))
        return start_s, counts[counts["count"] > 0]

    return _whole_minutes(tables, lambda _: ["minute", "model", "count"], read)


def huawei(tables: Sequence[TraceTable], index: ModelIndex) -> Iterator[BinCounts]:
    """A row per minute, a column per function or region: `minute,…`, or `day,time,…` in seconds."""

    def columns(table: TraceTable) -> list[str]:
        time = "minute" if "minute" in table.columns else "time"
        return [time, *huawei_functions(table.columns)]

    def read(block: Block) -> tuple[NDArray[np.float64], BinCounts]:
        if "minute" in block.batch.schema.names:
            start_s = _minute_start_s(block)
        else:
            start_s = block.numbers("time")
            block.check("time", start_s % MINUTE_S == 0, "a multiple of 60 s (counts per minute)")
        functions = huawei_functions(block.batch.schema.names)
        models = index.codes(pa.array(functions, pa.string()))
        return start_s, _matrix_counts(block, functions, start_s[:, None], models)

    return _whole_minutes(tables, columns, read)


def huawei_functions(columns: Sequence[str]) -> list[str]:
    """The columns of counts; a column without a name is an index that was saved with the table."""
    return [name for name in columns if name not in {"", "minute", "day", "time"}]


def _minute_start_s(block: Block) -> NDArray[np.float64]:
    return np.multiply(block.whole_numbers("minute"), MINUTE_S, dtype=np.float64)


def _matrix_counts(
    block: Block,
    columns: list[str],
    start_s: NDArray[np.float64],
    models: NDArray[np.int32],
) -> BinCounts:
    """The counts above 0 of all columns; starts and models are broadcast to the matrix."""
    matrix = block.count_matrix(columns, maximum=_MAX_COUNT)
    positive = matrix > 0
    starts_s, codes = (np.broadcast_to(each, matrix.shape)[positive] for each in (start_s, models))
    return bin_counts(starts_s, codes, matrix[positive])


def _whole_minutes(
    tables: Sequence[TraceTable],
    columns: Callable[[TraceTable], list[str]],
    read: Callable[[Block], tuple[NDArray[np.float64], BinCounts]],
) -> Iterator[BinCounts]:
    """The counts of all blocks, cut between minutes.

    `read` returns the start of each row's minute, and the counts. Raises UnsortedTrace.
    """
    held = np.empty(0, BIN_COUNT)
    latest_s = -np.inf
    for table in tables:
        for block in table.blocks(columns(table)):
            start_s, counts = read(block)
            before_s = np.concatenate([[latest_s], start_s[:-1]])
            for row in np.flatnonzero(start_s < before_s)[:1].tolist():
                problem = (
                    f"minute {start_s[row] / MINUTE_S:.0f} comes after minute "
                    f"{before_s[row] / MINUTE_S:.0f}; sort the rows by minute"
                )
                raise block.error(row, problem, UnsortedTrace)
            latest_s = start_s[-1]
            held = np.concatenate([held, counts])
            cut = int(np.searchsorted(held["start_s"], latest_s, side="left"))
            if cut:
                yield held[:cut]
            held = held[cut:]
    yield held
