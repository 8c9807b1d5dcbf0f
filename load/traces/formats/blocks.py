"""Columns of text or numbers as checked arrays; the first bad cell is told with file and row."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from load.errors import InvalidTrace
from load.traces.formats.tables import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LARGEST: Final = 2**53  # larger ones are not exact on their way


def numbers(
    block: Block, name: str, *, least: float = 0.0, absent: float | None = None
) -> NDArray[np.float64]:
    """Finite numbers of at least `least`; an empty cell is `absent`, or an error."""
    column = _plain(block, name)
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    allowed = f"a number of at least {least:g}" if least > -np.inf else "a number"
    values = _cast(block, name, column, allowed)
    empty = column.is_null().to_numpy(zero_copy_only=False)
    filled: NDArray[np.float64] = np.where(empty, 0.0 if absent is None else absent, values)
    good = empty | (np.isfinite(filled) & (filled >= least))
    _check(block, name, good if absent is not None else good & ~empty, allowed)
    return filled


def whole_numbers(
    block: Block, name: str, *, least: int = 0, most: int = _LARGEST, absent: int | None = None
) -> NDArray[np.int64]:
    """Whole numbers from `least` to `most`; `3.0` counts as one."""
    values = numbers(block, name, least=least, absent=absent)
    allowed = f"a whole number from {least} to {most}"
    _check(block, name, (values == np.floor(values)) & (values <= most), allowed)
    return values.astype(np.int64)


def count_matrix(block: Block, columns: Sequence[str], *, most: int) -> NDArray[np.int64]:
    """Counts by row and column, an empty cell being 0; all columns are converted in one go."""
    parts = [_plain(block, name) for name in columns]
    if len({str(part.type) for part in parts}) == 1:
        flat = pa.RecordBatch.from_arrays([pa.concat_arrays(parts)], ["count"])
        with contextlib.suppress(InvalidTrace):  # told below, with its own row and column
            whole = Block(block.path, block.first_row, flat)
            values = whole_numbers(whole, "count", most=most, absent=0)
            return values.reshape(len(columns), -1).T
    each = [whole_numbers(block, name, most=most, absent=0) for name in columns]
    return np.column_stack(each)


def moments(block: Block, name: str) -> NDArray[np.int64]:
    """Dates with time, with or without a zone, as nanoseconds since 1970."""
    column = _plain(block, name)
    allowed = "a time such as 2024-05-10 00:00:03.25"
    if not pa.types.is_timestamp(column.type):
        column = _without_zone(column)
    _check(block, name, ~column.is_null().to_numpy(zero_copy_only=False), allowed)
    try:
        stamps = column.cast(pa.timestamp("ns"))
    except pa.ArrowInvalid:
        _check(block, name, _castable(column, pa.timestamp("ns")), allowed)
        raise
    nanoseconds: NDArray[np.int64] = stamps.cast(pa.int64()).to_numpy()
    return nanoseconds


def names(block: Block, name: str, *, absent: str | None = None) -> pa.Array:
    """Names, without the slash that parts tenant and model; an empty cell is `absent` or wrong."""
    column = _plain(block, name).cast(pa.string())
    column = pc.utf8_trim_whitespace(pc.fill_null(column, ""))
    slash = pc.match_substring(column, "/").to_numpy(zero_copy_only=False)
    _check(block, name, ~slash, "a name without '/'")
    empty = pc.equal(column, "")
    if absent is None:
        _check(block, name, ~empty.to_numpy(zero_copy_only=False), "a name")
        return column
    return pc.if_else(empty, absent, column)


def _plain(block: Block, name: str) -> pa.Array:
    """Text as one type, whatever a Parquet file holds it as. Raises InvalidTrace for lists."""
    column = block.columns.column(name)
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        problem = f"{name} must be text or numbers, was {column.type}"
        raise InvalidTrace(block.path, block.first_row, problem)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    other_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if other_text else column


def _without_zone(column: pa.Array) -> pa.Array:
    """`…+00:00` and `…Z` are what the public traces have; all of a trace is in one zone."""
    trimmed = pc.utf8_trim_whitespace(column.cast(pa.string()))
    return pc.replace_substring_regex(trimmed, r"(Z|[+-]\d\d:?\d\d)$", "")


def _cast(block: Block, name: str, column: pa.Array, allowed: str) -> NDArray[np.float64]:
    try:
        cast = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        _check(block, name, _castable(column, pa.float64()), allowed)
        raise
    values: NDArray[np.float64] = cast.to_numpy(zero_copy_only=False)
    return values


def _castable(column: pa.Array, kind: object) -> NDArray[np.bool_]:
    """Cell by cell, up to the first bad one; only for a column that has one."""
    good = np.ones(len(column), np.bool_)
    for index, cell in enumerate(column):
        try:
            cell.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            good[index] = False
            break
    return good


def _check(block: Block, name: str, good: NDArray[np.bool_], allowed: str) -> None:
    if not good.all():
        index = int(np.argmin(good))
        seen = block.columns.column(name)[index].as_py()
        raise InvalidTrace(
            block.path, block.first_row + index, f"{name} must be {allowed}, was {seen!r}"
        )
