"""Rows of features in, predictions out, as KServe's servers of scikit-learn and boosters answer.

V1: a list per row, or an object per row (or of lists) with the columns by name. V2: one tensor of
shape [rows, features], or one tensor per column. The output is one tensor named `output-0`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    Tensor,
    bytes_tensor,
    check_item_count,
    numeric_tensor,
    v1_values,
)
from common.shown_value import kind_of, shown
from registry.domain.model import Task
from runtime.engines.libraries.library import BoosterModel
from runtime.engines.libraries.rows import INPUT, TabularSignature, is_matrix, matrix
from runtime.errors import InferenceFailed, ModelInvalid
from runtime.tasks.task import Batching, Processor

EXAMPLE_FEATURES = 1
BOOSTERS = frozenset({"xgboost", "lightgbm"})
"""Engines whose trees learn what a missing number means, so a row may lack columns."""
MAX_ROWS = 1 << 18
"""Far more than of texts or images: a row takes microseconds, and clients score whole tables."""
_NUMBERS = frozenset({int, float, type(None)})
_FLAGS = frozenset({bool, type(None)})


class TabularBatching(Batching):
    """Requests with the same columns form a batch: no row of theirs affects another."""

    def __init__(self) -> None:
        self.signature: TabularSignature | None = None
        """Known once the model was loaded here."""

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if is_matrix(inputs):
            rows = {inputs[0].shape[0]}
        else:
            for tensor in inputs:
                if len(tensor.shape) != 1 and tensor.shape[1:] != (1,):
                    raise InvalidRequest(
                        f"input {tensor.name!r} must have shape [rows, features], or be one of"
                        f" several columns of shape [rows], was {list(tensor.shape)}"
                    )
            rows = {tensor.shape[0] for tensor in inputs}
        if len(rows) != 1 or 0 in rows:
            raise InvalidRequest(f"all inputs must have the same rows, 1 or more, had {rows}")
        return tuple(inputs)

    def batch_key(self, inputs: Sequence[Tensor], network: Any) -> Hashable:
        """Names, types and widths of the columns; raises InvalidRequest if the model has others."""
        model: BoosterModel = network
        model.check(inputs)
        return tuple((each.name, each.datatype, each.shape[1:]) for each in inputs)

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        inputs = self.signature.inputs if self.signature is not None else matrix(EXAMPLE_FEATURES)
        return tuple(each.rows(rows) for each in inputs)


class Tabular(Processor):
    """The task of XGBoost, LightGBM and scikit-learn. The model itself knows its features."""

    batching: TabularBatching

    def __init__(self, engine: str, declared: Task | None, allowed: Sequence[Task]) -> None:
        if declared is not None and declared not in allowed:
            tasks = ", ".join(allowed) or "none"
            raise ModelInvalid(
                f"a model of {engine} may have the tasks: {tasks}; task {declared.value!r} is"
                " declared: change the annotation pilotlight.io/task"
            )
        self.batching = TabularBatching()
        self._engine = engine

    @property
    def platform(self) -> str:
        return self._engine

    @property
    def is_quick(self) -> bool:
        return True

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Tensor]:
        return instance_tensors(instances, fills_absent=self.platform in BOOSTERS)

    def infer(self, network: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        model: BoosterModel = network
        model.check(inputs)
        return model.infer(inputs)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One value or list per row; of several outputs, one list of them per row."""
        rows = [v1_values(tensor) for tensor in outputs]
        return list(rows[0]) if len(rows) == 1 else [list(each) for each in zip(*rows, strict=True)]

    def warm_up(self, network: Any) -> None:
        """Infer an example, whose outputs are those of the metadata."""
        model: BoosterModel = network
        signature = model.signature
        with suppress(InvalidRequest, InferenceFailed):  # it may take other values only
            outputs = model.infer([each.rows(1) for each in signature.inputs])
            signature = signature.answering(outputs)
        self.batching.signature = signature

    def input_types(self) -> list[dict[str, Any]]:
        """Empty before the model was loaded here."""
        signature = self.batching.signature
        return [each.metadata() for each in signature.inputs] if signature else []

    def output_types(self) -> list[dict[str, Any]]:
        signature = self.batching.signature
        return [each.metadata() for each in signature.outputs] if signature else []


def instance_tensors(instances: Sequence[Any], *, fills_absent: bool = False) -> list[Tensor]:
    """The tensors of a V1 body's instances; `null` is a missing number. Raises InvalidRequest.

    `fills_absent`: an object may lack columns that others have: missing numbers as well.
    """
    check_item_count(len(instances), MAX_ROWS)
    rows = _flattened(instances)
    if all(isinstance(row, dict) for row in rows):
        return _columns(rows, fills_absent=fills_absent)
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


def _columns(rows: Sequence[Mapping[str, Any]], *, fills_absent: bool) -> list[Tensor]:
    """One tensor per column; the value of an object may be a list, of equal length in all."""
    columns: dict[str, list[Any]] = {name: [] for name in rows[0]}
    count = 0
    for index, row in enumerate(rows):
        if row.keys() != columns.keys():
            if not fills_absent:
                raise InvalidRequest(
                    f"instances[{index}] must have the columns {shown(list(rows[0]))} of the first,"
                    f" had {shown(list(row))}"
                )
            columns |= {name: [None] * count for name in row if name not in columns}
        added = _row_count(index, row)
        for name, values in columns.items():
            value = row.get(name, [None] * added)
            values += value if isinstance(value, list) else [value]
        count += added
    check_item_count(count, MAX_ROWS)
    return [_column(name, values) for name, values in columns.items()]


def _row_count(index: int, row: Mapping[str, Any]) -> int:
    lengths = {len(value) if isinstance(value, list) else None for value in row.values()}
    if not lengths:
        raise InvalidRequest(f"instances[{index}] must have one column or more, had none")
    if len(lengths) > 1:
        raise InvalidRequest(
            f"instances[{index}] must have one value per column, or lists of equal length"
        )
    length = lengths.pop()
    return 1 if length is None else length


def _column(name: str, values: Sequence[Any]) -> Tensor:
    types = set(map(type, values))
    if types == {bool}:
        return numeric_tensor(name, np.asarray(values, np.bool_))
    if types == {str}:
        return bytes_tensor(name, [value.encode() for value in values])
    if not (types <= _NUMBERS or types <= _FLAGS):
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
