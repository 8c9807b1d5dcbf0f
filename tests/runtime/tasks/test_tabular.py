"""V2 metadata of boosters, once they are loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from common.inference_protocol import InvalidRequest
from registry.domain.model import Task
from runtime.tasks.processors import load_processor
from runtime.tasks.tabular import instance_tensors
from tests.runtime.engines.libraries.loaded import load
from tests.tabular_models import MAKERS, iris

MATRIX = [{"name": "input-0", "datatype": "FP64", "shape": [-1, 4]}]
NAMES = ["a", "b", "c", "d"]
NAN = float("nan")


def _output(datatype: str, *row_shape: int) -> list[dict[str, Any]]:
    return [{"name": "output-0", "datatype": datatype, "shape": [-1, *row_shape]}]


def _metadata(folder: Path, task: Task | None = None) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs, none before the load; the model's example is an input."""
    before = load_processor(folder, task)
    assert (before.input_types(), before.output_types()) == ([], [])
    model = load(folder, task)
    found = model.processor.input_types(), model.processor.output_types()
    outputs = model.v2(model.processor.batching.example(3, 1))
    assert [each.shape[0] for each in outputs] == [3]
    return found


@pytest.mark.parametrize(
    ("name", "datatype", "row_shape"), [("xgboost", "FP32", (3,)), ("lightgbm", "FP64", (3,))]
)
def test_models_of_a_matrix(
    name: str, datatype: str, row_shape: tuple[int, ...], tmp_path: Path
) -> None:
    assert _metadata(MAKERS[name](tmp_path)) == (MATRIX, _output(datatype, *row_shape))


def _columns(**datatypes: str) -> list[dict[str, Any]]:
    return [{"name": each, "datatype": kind, "shape": [-1]} for each, kind in datatypes.items()]


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_models_of_a_table_have_an_input_per_column(name: str, tmp_path: Path) -> None:
    features, classes = iris()
    table, target = pd.DataFrame(features, columns=NAMES), classes.astype(float)
    datatype = "FP64"
    match name:
        case "lightgbm":
            import lightgbm

            booster = lightgbm.train({"verbose": -1}, lightgbm.Dataset(table, target), 2)
            booster.save_model(tmp_path / "model.txt")
        case _:
            import xgboost

            booster = xgboost.train({}, xgboost.DMatrix(table, target), 2)
            booster.save_model(tmp_path / "model.ubj")
            datatype = "FP32"
    assert _metadata(tmp_path) == (_columns(**dict.fromkeys(NAMES, "FP64")), _output(datatype))


def test_an_input_of_a_matrix_may_have_any_name(tmp_path: Path) -> None:
    from common.inference_protocol.tensors import numeric_tensor

    model = load(MAKERS["xgboost"](tmp_path))
    rows = np.ones((2, 4), np.float32)
    assert model.v2([numeric_tensor("whatever", rows)])[0].shape == (2, 3)


def values_by_column(instances: list[object]) -> dict[str, list[object]]:
    tensors = instance_tensors(instances, fills_absent=True)
    return {each.name: each.data.tolist() for each in tensors}


def test_what_an_object_lacks_is_a_missing_number() -> None:
    found = values_by_column([{"a": 1, "b": 2.5}, {"c": True}, {"a": 3, "c": False}])
    np.testing.assert_equal(
        found, {"a": [1.0, NAN, 3.0], "b": [2.5, NAN, NAN], "c": [NAN, 1.0, 0.0]}
    )


def test_objects_in_one_list_are_rows_of_one_column_each() -> None:
    found = values_by_column([[{"a": 5.1}, {"b": 3.5}]])
    np.testing.assert_equal(found, {"a": [5.1, NAN], "b": [NAN, 3.5]})


def test_objects_of_lists_lack_as_many_numbers_as_they_have_rows() -> None:
    found = values_by_column([{"a": [1, 2]}, {"b": [3, 4]}])
    np.testing.assert_equal(found, {"a": [1.0, 2.0, NAN, NAN], "b": [NAN, NAN, 3.0, 4.0]})


@pytest.mark.parametrize("instances", [[{"a": 1}, {}], [{}], [{"a": 1, "b": [2]}]])
def test_objects_without_rows_or_of_several_lengths_are_refused(instances: list[object]) -> None:
    with pytest.raises(InvalidRequest, match=r"instances\[\d\] must have one"):
        instance_tensors(instances, fills_absent=True)


def test_a_missing_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be numbers, or all texts"):
        instance_tensors([{"a": "x"}, {"b": "y"}], fills_absent=True)


def test_objects_must_have_all_columns_where_none_is_filled_in() -> None:
    with pytest.raises(InvalidRequest, match=r"instances\[1\] must have the columns"):
        instance_tensors([{"a": 1}, {"b": 2}])
