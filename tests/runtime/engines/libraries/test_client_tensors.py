"""Tensors as clients send them to libraries: missing numbers and columns, bytes, sizes of zero."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from tests.runtime.engines.libraries.loaded import Loaded, load, onnx_model
from tests.tabular_models import iris

NAMES = ["a", "b", "c", "d"]


def _booster(name: str, folder: Path) -> Any:
    """Trained with missing numbers and named columns, and saved."""
    features, classes = iris()
    features[::3, 0] = np.nan
    if name == "xgboost":
        import xgboost

        matrix = xgboost.DMatrix(features, classes, feature_names=NAMES)
        booster = xgboost.train({"max_depth": 3}, matrix, 5)
        booster.save_model(folder / "model.ubj")
        return lambda rows: booster.predict(xgboost.DMatrix(rows, feature_names=NAMES))
    import lightgbm

    data = lightgbm.Dataset(features, classes, feature_name=NAMES)
    booster = lightgbm.train({"verbose": -1}, data, 5)
    booster.save_model(folder / "model.txt")
    return booster.predict


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_columns_that_rows_lack_are_missing_numbers(name: str, tmp_path: Path) -> None:
    predict = _booster(name, tmp_path)
    model = load(tmp_path)
    nan = float("nan")
    expected = predict(np.asarray([[5.1, nan, nan, nan], [nan, 3.5, nan, nan], [1, 2, nan, nan]]))
    rows: list[Any] = [{"a": 5.1}, {"b": 3.5}, {"a": 1, "b": 2}]
    for instances in (rows, [rows]):
        np.testing.assert_allclose(model.v1(instances), expected, rtol=1e-6)
    columns = [
        numeric_tensor("b", np.asarray([nan, 3.5, 2])),
        numeric_tensor("a", np.asarray([5.1, nan, 1])),
    ]
    np.testing.assert_allclose(model.v2(columns)[0].data, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_columns_that_the_model_does_not_know_are_refused(name: str, tmp_path: Path) -> None:
    _booster(name, tmp_path)
    with pytest.raises(InvalidRequest, match=r"missing \[\], unknown \['e'\]"):
        load(tmp_path).v1([{"a": 1.0, "e": 2.0}])


def _onnx(
    folder: Path, inputs: Sequence[Any], nodes: Sequence[Any], weights: Sequence[Any] = ()
) -> Loaded:
    """The inputs as (name, type, shape); the output is `y`."""
    model = onnx_model(nodes, inputs, [("y", inputs[0][1], None)], weights)
    onnx.save(model, folder / "model.onnx")
    return load(folder)


IDENTITY = [helper.make_node("Identity", ["x"], ["y"])]


def test_bytes_that_are_no_text_never_reach_an_onnx_model(tmp_path: Path) -> None:
    model = _onnx(tmp_path, [("x", TensorProto.STRING, ["n"])], IDENTITY)
    text = bytes_tensor("x", ["grün".encode(), b"a\x00b"])
    assert model.v2([text])[0].data.tolist() == text.data.tolist()
    with pytest.raises(InvalidRequest, match="'x' must hold UTF-8, but byte 1 of one is not"):
        model.v2([bytes_tensor("x", [b"a", b"b\xff"])])


def test_bytes_that_are_no_text_never_reach_scikit_learn(tmp_path: Path) -> None:
    import skops.io
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline(CountVectorizer(), MultinomialNB()).fit(["good", "bad"], [1, 0])
    skops.io.dump(pipeline, tmp_path / "model.skops")
    model = load(tmp_path)
    assert model.v1(["good"]) == [1]
    with pytest.raises(InvalidRequest, match="byte 0 of one is not"):
        model.v2([bytes_tensor("text", [b"\xff"])])


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        pytest.param(["n", 3], (0, 3), id="rows"),
        pytest.param(["n", 4, "past", 8], (1, 4, 0, 8), id="another size"),
        pytest.param([None], (0,), id="a size without a name"),
    ],
)
def test_a_varying_size_of_an_onnx_model_may_be_zero(
    shape: list[Any], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    model = _onnx(tmp_path, [("x", TensorProto.FLOAT, shape)], IDENTITY)
    assert model.v2([numeric_tensor("x", np.zeros(sizes, np.float32))])[0].shape == sizes


def test_a_fixed_size_of_an_onnx_model_is_never_zero(tmp_path: Path) -> None:
    model = _onnx(tmp_path, [("x", TensorProto.FLOAT, ["n", 3])], IDENTITY)
    with pytest.raises(InvalidRequest, match=r"shape \[0 or more, 3\], was \[1, 0\]"):
        model.v2([numeric_tensor("x", np.zeros((1, 0), np.float32))])


def test_an_onnx_model_that_would_end_the_process_gets_no_size_of_zero(tmp_path: Path) -> None:
    """onnxruntime's recurrent operators call std::terminate for them."""
    weights = [
        numpy_helper.from_array(np.ones((1, 6, 3), np.float32), "w"),
        numpy_helper.from_array(np.ones((1, 6, 2), np.float32), "r"),
    ]
    cell = helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=2)
    model = _onnx(tmp_path, [("x", TensorProto.FLOAT, ["t", "n", 3])], [cell], weights)
    assert model.v2([numeric_tensor("x", np.zeros((1, 1, 3), np.float32))])[0].shape == (1, 1, 1, 2)
    with pytest.raises(InvalidRequest, match=r"shape \[1 or more, 1 or more, 3\], was \[0, 1, 3\]"):
        model.v2([numeric_tensor("x", np.zeros((0, 1, 3), np.float32))])


def test_missing_numbers_of_16_bits_in_v1(tmp_path: Path) -> None:
    model = _onnx(tmp_path, [("x", TensorProto.FLOAT16, ["n", 2])], IDENTITY)
    (output,) = model.v2(model.processor.read_instances([[None, 1.5]]))
    assert output.datatype == "FP16"
    np.testing.assert_equal(output.data.astype(np.float64), [[np.nan, 1.5]])


def test_booleans_are_no_missing_numbers(tmp_path: Path) -> None:
    model = _onnx(tmp_path, [("x", TensorProto.BOOL, ["n"])], IDENTITY)
    with pytest.raises(InvalidRequest, match="must be values of datatype BOOL"):
        model.v1([None, True])
    assert model.v2([Tensor("x", "BOOL", np.asarray([True]))])[0].data.tolist() == [True]
