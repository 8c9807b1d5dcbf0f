"""Published counts per minute as cells in order of time: the public formats that have them.

Azure 2019 has one function per row and a day per file; it is turned by way of temporary files, an
hour each, so that memory holds one hour. The others have their minutes in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from load.errors import InvalidTrace, UnsortedTrace
from load.traces.expansion import Cells
from load.traces.formats.blocks import count_matrix, names, numbers, whole_numbers
from load.traces.formats.external_sort import by_hour
from load.traces.formats.tables import Block, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from load.traces.formats.tables import TraceTable
    from load.traces.name_columns import Functions

MINUTE_S: Final = 60.0
DAY_S: Final = 86_400.0
MOST_PER_CELL: Final = 5_000_000
"""Arrivals of a function in a minute that are expanded in memory; public counts are far below."""

_MINUTE: Final = re.compile(r"[1-9]\d{0,3}")


@dataclass(frozen=True, slots=True)
class _CountReader:
    """What a block has: the start of each row's minute, and the counts above 0."""

    row_start_s: NDArray[np.float64]
    cells: Cells


def azure_2019_minutes(columns: Sequence[str]) -> list[str]:
    """The columns that are minutes of the day, 1 to 1440."""
    return [name for name in columns if _MINUTE.fullmatch(name) and int(name) <= 1440]


def azure_2019(tables: Sequence[TraceTable], functions: Functions) -> Iterator[Cells]:
    """Each file is a day, in the order given; tenants are owners."""
    for day, table in enumerate(tables):
        minutes = azure_2019_minutes(table.columns)
        starts_s = np.array([int(name) - 1 for name in minutes]) * MINUTE_S + day * DAY_S
        yield from by_hour(_azure_2019_rows(table, minutes, starts_s, functions))


def _azure_2019_rows(
    table: TraceTable, minutes: list[str], starts_s: NDArray[np.float64], functions: Functions
) -> Iterator[Cells]:
    for block in blocks(table, ["HashOwner", "HashFunction", *minutes]):
        own = functions.numbered(names(block, "HashFunction"), names(block, "HashOwner"))
        matrix = count_matrix(block, minutes, most=MOST_PER_CELL)
        row, column = np.nonzero(matrix)
        yield Cells(starts_s[column], own[row], matrix[row, column])


def gentd26_per_minute(tables: Sequence[TraceTable], functions: Functions) -> Iterator[Cells]:
    """Rows of `minute`, `model`, `count`; rows without a model are of the model `unknown`."""

    def read(block: Block) -> _CountReader:
        start_s = _minute(block)
        own = functions.numbered(names(block, "model", absent="unknown"))
        count = whole_numbers(block, "count", most=MOST_PER_CELL)
        some = count > 0
        return _CountReader(start_s, Cells(start_s[some], own[some], count[some]))

    return _whole_bins(tables, lambda _: ["minute", "model", "count"], read)


def huawei(tables: Sequence[TraceTable], functions: Functions) -> Iterator[Cells]:
    """A row per minute, a column per function or region: `minute,…`, or `day,time,…` in seconds."""

    def read(block: Block) -> _CountReader:
        columns = block.columns.schema.names
        counted = huawei_functions(columns)
        start_s = _minute(block) if "minute" in columns else _time(block)
        own = functions.numbered(pa.array(counted, pa.string()))
        matrix = count_matrix(block, counted, most=MOST_PER_CELL)
        row, column = np.nonzero(matrix)
        return _CountReader(start_s, Cells(start_s[row], own[column], matrix[row, column]))

    return _whole_bins(tables, lambda table: _huawei_wanted(table.columns), read)


def huawei_functions(columns: Sequence[str]) -> list[str]:
    """The columns that count; one without a name is an index that was saved with the table."""
    return [name for name in columns if name not in {"", "minute", "day", "time"}]


def _huawei_wanted(columns: Sequence[str]) -> list[str]:
    return ["minute" if "minute" in columns else "time", *huawei_functions(columns)]


def _minute(block: Block) -> NDArray[np.float64]:
    return np.multiply(whole_numbers(block, "minute"), MINUTE_S, dtype=np.float64)


def _time(block: Block) -> NDArray[np.float64]:
    """Seconds since the trace's start. Per-second counts are refused: they are not minutes."""
    seconds = numbers(block, "time")
    if (seconds % MINUTE_S != 0).any():
        index = int(np.argmax(seconds % MINUTE_S != 0))
        problem = f"time must be a multiple of 60 s (counts per minute), was {seconds[index]:g}"
        raise InvalidTrace(block.path, block.first_row + index, problem)
    return seconds


def _whole_bins(
    tables: Sequence[TraceTable],
    wanted: Callable[[TraceTable], list[str]],
    read: Callable[[Block], _CountReader],
) -> Iterator[Cells]:
    """The cells of all blocks, cut so that those of a minute stay together."""
    held: Cells | None = None
    newest_s = -np.inf
    for table in tables:
        for block in blocks(table, wanted(table)):
            found = read(block)
            newest_s = _require_order(block, found.row_start_s, newest_s)
            pool = found.cells if held is None else _appended(held, found.cells)
            cut = int(np.searchsorted(pool.start_s, newest_s, side="left"))
            if cut:
                yield _part(pool, slice(0, cut))
            held = _part(pool, slice(cut, None))
    if held is not None:
        yield held


def _require_order(block: Block, start_s: NDArray[np.float64], newest_s: float) -> float:
    """The last minute's start. Raises UnsortedTrace."""
    before = np.concatenate([[newest_s], start_s[:-1]])
    if (start_s < before).any():
        index = int(np.argmax(start_s < before))
        problem = (
            f"minute {start_s[index] / MINUTE_S:.0f} comes after minute "
            f"{before[index] / MINUTE_S:.0f}; sort the rows by minute"
        )
        raise UnsortedTrace(block.path, block.first_row + index, problem)
    return float(start_s[-1])


def _part(cells: Cells, rows: slice) -> Cells:
    return Cells(cells.start_s[rows], cells.function[rows], cells.count[rows])


def _appended(first: Cells, second: Cells) -> Cells:
    return Cells(
        np.concatenate([first.start_s, second.start_s]),
        np.concatenate([first.function, second.function]),
        np.concatenate([first.count, second.count]),
    )
