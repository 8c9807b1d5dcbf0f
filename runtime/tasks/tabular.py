"""Rows of features in, predictions out, as KServe's servers of scikit-learn and boosters answer.

V1: a list per row, or an object per row (or of lists) with every column by name. V2: one tensor of
shape [rows, features], or one tensor per column. The output is one tensor named `output-0`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.engines.libraries.rows import is_matrix
from runtime.errors import InvalidRequest, ModelInvalid
from runtime.tasks.tabular_instances import INPUT, instance_tensors
from runtime.tasks.tensor_batching import Batching
from runtime.wire.tensors import Tensor, numeric_tensor, plain_values

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from registry.domain.model import Task
    from runtime.engines.libraries.library import LibraryModel

EXAMPLE_FEATURES = 1


class TabularBatching(Batching):
    """Requests with the same columns form a batch: no row of theirs affects another."""

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

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        return inputs[0].shape[0]

    def batch_key(self, inputs: Sequence[Tensor], network: Any) -> Hashable:
        """Names, types and widths of the columns; raises InvalidRequest if the model has others."""
        model: LibraryModel = network
        model.check(inputs)
        return tuple((each.name, each.datatype, each.shape[1:]) for each in inputs)

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        return (numeric_tensor(INPUT, np.zeros((rows, EXAMPLE_FEATURES))),)


class Tabular:
    """The task of XGBoost, LightGBM and scikit-learn. The model itself knows its features."""

    waits_for_sandbox = False

    def __init__(self, engine: str, declared: Task | None, allowed: Sequence[Task]) -> None:
        if declared is not None and declared not in allowed:
            tasks = ", ".join(allowed) or "none"
            raise ModelInvalid(
                f"a model of {engine} may have the tasks: {tasks}; task {declared.value!r} is"
                " declared: change the annotation pilotlight.io/task"
            )
        self.batching = TabularBatching()
        self.platform = engine

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Tensor]:
        return instance_tensors(instances)

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors

    def preprocess(self, items: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(items)

    def infer(self, network: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        model: LibraryModel = network
        model.check(inputs)
        return model.infer(inputs)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(outputs)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One value or list per row; of several outputs, one list of them per row."""
        rows = [plain_values(tensor).tolist() for tensor in outputs]
        return list(rows[0]) if len(rows) == 1 else [list(each) for each in zip(*rows, strict=True)]

    def warm_up(self, network: Any) -> None:
        """Nothing: loading prepares all that the first inference needs."""

    def input_types(self) -> list[dict[str, Any]]:
        """Empty, as of KServe's servers: the file is read when the model is loaded."""
        return []

    def output_types(self) -> list[dict[str, Any]]:
        return []
