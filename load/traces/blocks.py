"""Blocks of rows with checked columns, sorted by time; invalid cells are named by file and row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from load.errors import InvalidTrace, TraceError
from load.schema import Trace
from load.traces.batches import concat, sorted_by_time, times_s

_MAX_EXACT: Final = 2**53  # float64 represents no larger whole numbers exactly
_BAD_CAST: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a file; `first_row` is the number of the first row in the file."""

    path: str
    first_row: int
    batch: pa.RecordBatch

    def error(self, index: int, problem: str) -> InvalidTrace:
        """An error about the row at `index` of this block."""
        return InvalidTrace(self.path, self.first_row + index, problem)

    def check(self, name: str, good: NDArray[np.bool_], allowed: str) -> None:
        """Raise InvalidTrace at the first cell of the column that is not good."""
        if not good.all():
            raise self._invalid_cell(name, int(np.argmin(good)), allowed)

    def numbers(self, name: str, *, default: float | None = None) -> NDArray[np.float64]:
        """Finite numbers of at least 0; an empty cell is `default`, or invalid."""
        column = self.column(name)
        if pa.types.is_string(column.type):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
        allowed = "a number of at least 0"
        cast = self.cast(name, column, pa.float64(), allowed)
        values = cast.to_numpy(zero_copy_only=False)
        empty = column.is_null().to_numpy(zero_copy_only=False)
        filled: NDArray[np.float64] = np.where(empty, 0.0 if default is None else default, values)
        good = empty | (np.isfinite(filled) & (filled >= 0))
        self.check(name, good if default is not None else good & ~empty, allowed)
        return filled

    def whole_numbers(
        self, name: str, *, maximum: int = _MAX_EXACT, default: int | None = None
    ) -> NDArray[np.int64]:
        """Whole numbers from 0 to `maximum`; `3.0` is one of them."""
        values = self.numbers(name, default=default)
        good = (values == np.floor(values)) & (values <= maximum)
        self.check(name, good, f"a whole number from 0 to {maximum}")
        return values.astype(np.int64)

    def names(self, name: str, *, default: str | None = None) -> pa.Array:
        """Names without a slash (it separates tenant and model); empty cells as in `numbers`."""
        column = self.column(name).cast(pa.string())
        column = pc.utf8_trim_whitespace(pc.fill_null(column, ""))
        has_slash = pc.match_substring(column, "/").to_numpy(zero_copy_only=False)
        self.check(name, ~has_slash, "a name without '/'")
        empty = pc.equal(column, "")
        if default is None:
            self.check(name, ~empty.to_numpy(zero_copy_only=False), "a name")
            return column
        return pc.if_else(empty, default, column)

    def column(self, name: str) -> pa.Array:
        """The column with all types of text as one. Raises InvalidTrace for lists and bytes."""
        column = self.batch.column(name)
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            raise self.error(0, f"{name} must be text or numbers, was {column.type}")
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        other_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
        return column.cast(pa.string()) if other_text else column

    def cast(self, name: str, column: pa.Array, kind: object, allowed: str) -> pa.Array:
        try:
            return column.cast(kind)
        except _BAD_CAST as error:
            for index, cell in enumerate(column):
                try:
                    cell.cast(kind)
                except _BAD_CAST:
                    raise self._invalid_cell(name, index, allowed) from error
            raise

    def _invalid_cell(self, name: str, index: int, allowed: str) -> InvalidTrace:
        cell = self.batch.column(name)[index]
        try:
            seen = cell.as_py()
        except OverflowError:  # a timestamp beyond Python's
            seen = cell.cast(pa.string()).as_py()
        return self.error(index, f"{name} must be {allowed}, was {seen!r}")


def sort_within_window(blocks: Iterable[Block], *, window_s: float) -> Iterator[pa.RecordBatch]:
    """Sort the arrivals by time (stable); only the rows of one window are in memory.

    Raises InvalidTrace at a row that is earlier than a row above it by more than `window_s`
    seconds, regardless of how the rows are cut into blocks. The arrivals of all earlier blocks are
    yielded before this error or an error of a block is raised.
    """
    held: list[pa.RecordBatch] = []
    latest_s = -np.inf
    try:
        for block in blocks:
            if not block.batch.num_rows:
                continue
            at_s = times_s(block.batch)
            latest_each = np.maximum.accumulate(np.maximum(at_s, latest_s))
            late = at_s < latest_each - window_s
            if late.any():
                row = int(np.argmax(late))
                problem = (
                    f"arrives {latest_each[row] - at_s[row]:.6g} s before a row above it; rows are "
                    f"sorted within {window_s:g} s: sort the file by arrival, or allow more, such "
                    "as window=1h"
                )
                raise block.error(row, problem)
            latest_s = float(latest_each[-1])
            merged_rows = sorted_by_time(concat([*held, block.batch]))
            ready = int(np.searchsorted(times_s(merged_rows), latest_s - window_s, side="left"))
            if ready:
                yield merged_rows.slice(0, ready)
            held = [merged_rows.slice(ready)]
    except TraceError:
        yield from held
        raise
    yield from held


def merged(traces: Sequence[Trace]) -> Iterator[pa.RecordBatch]:
    """All arrivals of all traces by time; one batch of each trace is in memory."""
    remaining = [(batch for batch in trace if batch.num_rows) for trace in traces]
    heads = [next(batches, None) for batches in remaining]
    while live := [head for head in heads if head is not None]:
        until_s = min(float(times_s(head)[-1]) for head in live)
        ready = []
        for index, head in enumerate(heads):
            if head is None:
                continue
            cut = int(np.searchsorted(times_s(head), until_s, side="right"))
            if cut:
                ready.append(head.slice(0, cut))
            rest = head.slice(cut) if cut < head.num_rows else next(remaining[index], None)
            heads[index] = rest
        yield sorted_by_time(concat(ready))
