"""V1 instances of tabular models as tensors: a matrix, texts, or one tensor per column."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from registry.shown_value import kind_of, shown
from runtime.errors import InvalidRequest
from runtime.wire.tensors import Tensor, bytes_tensor, check_item_count, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INPUT = "input-0"
MAX_ROWS = 1 << 18
"""Far more than of texts or images: a row takes microseconds, and clients score whole tables."""
_NUMBERS = frozenset({int, float, type(None)})


def instance_tensors(instances: Sequence[Any]) -> list[Tensor]:
    """The tensors of a V1 body's instances; `null` is a missing number. Raises InvalidRequest."""
    check_item_count(len(instances), MAX_ROWS)
    rows = _flattened(instances)
    if all(isinstance(row, dict) for row in rows):
        return _columns(rows)
    if all(isinstance(row, str) for row in rows):
        return [bytes_tensor(INPUT, [row.encode() for row in rows])]
    if all(isinstance(row, list) for row in rows):
        return [_matrix(rows)]
    raise InvalidRequest(
        "instances must be lists of features, objects with a value per column, or texts;"
        f" were {', '.join(sorted({kind_of(row) for row in rows}))}"
    )


def _flattened(instances: Sequence[Any]) -> Sequence[Any]:
    """Without one level, where each instance is a list of objects (data frames by rows)."""
    if all(isinstance(each, list) and each and isinstance(each[0], dict) for each in instances):
        rows = [row for each in instances for row in each]
        check_item_count(len(rows), MAX_ROWS)
        return rows
    return instances


def _matrix(rows: Sequence[list[Any]]) -> Tensor:
    widths = set(map(len, rows))
    if len(widths) > 1:
        raise InvalidRequest(f"instances must have equal numbers of features, had {sorted(widths)}")
    if 0 in widths:
        raise InvalidRequest("instances must have one feature or more, had none")
    flat = [value for row in rows for value in row]
    column = _column(INPUT, flat)
    return Tensor(INPUT, column.datatype, column.data.reshape(len(rows), -1))


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[Tensor]:
    """One tensor per column; the value of an object may be a list, of equal length in all."""
    names = list(rows[0])
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for index, row in enumerate(rows):
        if row.keys() != columns.keys():
            raise InvalidRequest(
                f"instances[{index}] must have the columns {shown(names)} of the first,"
                f" had {shown(list(row))}"
            )
        lengths = {len(value) if isinstance(value, list) else None for value in row.values()}
        if len(lengths) != 1:
            raise InvalidRequest(
                f"instances[{index}] must have one value per column, or lists of equal length"
            )
        for name, value in row.items():
            columns[name] += value if isinstance(value, list) else [value]
    if not names:
        raise InvalidRequest("instances must have one column or more, had none")
    check_item_count(len(columns[names[0]]), MAX_ROWS)
    return [_column(name, values) for name, values in columns.items()]


def _column(name: str, values: Sequence[Any]) -> Tensor:
    types = set(map(type, values))
    if types == {bool}:
        return numeric_tensor(name, np.asarray(values, np.bool_))
    if types == {str}:
        return bytes_tensor(name, [value.encode() for value in values])
    if not types <= _NUMBERS:
        odd = next(value for value in values if type(value) not in _NUMBERS)
        raise InvalidRequest(
            f"features of {name!r} must be numbers, or all texts, or all booleans;"
            f" one was {shown(odd)}"
        )
    try:
        if types == {int}:
            return numeric_tensor(name, np.asarray(values, np.int64))
        numbers = [math.nan if value is None else float(value) for value in values]
    except OverflowError as error:
        raise InvalidRequest(f"a feature of {name!r} has too many digits") from error
    return numeric_tensor(name, np.asarray(numbers, np.float64))
