"""Estimators as ONNX files: they predict as scikit-learn does, in onnxruntime and in our engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas
import pytest
from sklearn.cluster import Birch, KMeans
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from runtime.errors import ModelInvalid
from runtime.sandbox.conversion import (
    Converted,
    Tolerance,
    differences,
    example_rows,
    predictions_of,
    to_onnx,
)
from tests.runtime.engines.libraries.loaded import load
from tests.tabular_models import iris

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
"""skl2onnx reads attributes that scikit-learn has deprecated."""
FRAME = pandas.DataFrame({"colour": ["red", "blue"] * 20, "size": np.linspace(0.0, 4.0, 40)})


def _served(converted: Converted, folder: Path) -> Any:
    (folder / "model.onnx").write_bytes(converted.content)
    return load(folder)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: LogisticRegression(max_iter=500), id="logistic"),
        pytest.param(lambda: make_pipeline(StandardScaler(), SVC()), id="pipeline"),
        pytest.param(lambda: RandomForestClassifier(n_estimators=5), id="forest"),
        pytest.param(lambda: RandomForestRegressor(n_estimators=5), id="regressor"),
        pytest.param(lambda: KMeans(3), id="k-means"),
    ],
)
def test_the_onnx_engine_answers_as_the_estimator(make: Callable[[], Any], tmp_path: Path) -> None:
    features, classes = iris()
    estimator = make().fit(features, classes)
    converted = to_onnx(estimator, example_rows(estimator, None))
    assert differences(converted) == []
    rows = features[::30]
    answers = _served(converted, tmp_path).v1(rows.tolist())
    found = [each["label"] if isinstance(each, dict) else each for each in answers]
    np.testing.assert_allclose(np.ravel(found), estimator.predict(rows), rtol=1e-4)


def test_probabilities_are_an_output_of_the_engine(tmp_path: Path) -> None:
    features, classes = iris()
    estimator = LogisticRegression(max_iter=500).fit(features, classes)
    converted = to_onnx(estimator, features)
    assert list(converted.before) == ["predict", "predict_proba"]
    answers = _served(converted, tmp_path).v1(features[:3].tolist())
    np.testing.assert_allclose(
        [each["probabilities"] for each in answers],
        estimator.predict_proba(features[:3]),
        atol=1e-5,
    )


def test_named_columns_without_a_column_transformer_are_one_matrix(tmp_path: Path) -> None:
    features, classes = iris()
    frame = pandas.DataFrame(features, columns=["a", "b", "c", "d"])
    estimator = LogisticRegression(max_iter=500).fit(frame, classes)
    converted = to_onnx(estimator, example_rows(estimator, None))
    assert differences(converted) == []
    answers = _served(converted, tmp_path).v1(features[:1].tolist())
    assert [each["label"] for each in answers] == [0]


def test_columns_of_texts_and_numbers_are_inputs_of_their_own(tmp_path: Path) -> None:
    prepare = ColumnTransformer(
        [("a", OneHotEncoder(), ["colour"]), ("b", StandardScaler(), ["size"])]
    )
    labels = np.where(FRAME["size"] > 2, "large", "small")
    estimator = make_pipeline(prepare, LogisticRegression()).fit(FRAME, labels)
    converted = to_onnx(estimator, example_rows(estimator, FRAME.to_dict("records")))
    assert differences(converted) == []
    model = _served(converted, tmp_path)
    answers = model.v1([{"colour": ["red"], "size": [0.1]}, {"colour": ["blue"], "size": [3.9]}])
    assert [each["label"] for each in orjson.loads(orjson.dumps(answers))] == ["small", "large"]


def test_an_estimator_that_skl2onnx_cannot_convert_is_named_with_the_way_out() -> None:
    features, _ = iris()
    inner = make_pipeline(StandardScaler(), Birch(n_clusters=3)).fit(features)
    with pytest.raises(ModelInvalid, match=r"cannot convert the Pipeline: .*Birch.*--format skops"):
        to_onnx(inner, features)


def test_a_model_of_texts_is_named_with_the_way_out() -> None:
    texts = ["good", "bad", "good good"]
    estimator = make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, [1, 0, 1])
    with pytest.raises(ModelInvalid, match=r"texts.*--format skops"):
        to_onnx(estimator, texts)


def test_what_needs_64_bits_is_reported_as_different_on_rows_that_show_it() -> None:
    """The coefficients differ by their ninth digit, which 32 bits do not have."""
    estimator = LinearRegression().fit([[0.0, 0.0], [1.0, 1.0]], [0.0, 1.0])
    estimator.coef_ = np.pi * 1e8 * np.asarray([1.0, -1.000000001])
    estimator.intercept_ = 0.0
    assert differences(to_onnx(estimator, example_rows(estimator, None))) == []
    (found,) = differences(to_onnx(estimator, example_rows(estimator, [[1.0, 1.0], [0.0, 0.0]])))
    assert found.startswith("predict differs in 1 of 2 rows (row 0: 0.0 instead of -0.3")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        pytest.param([1.0, 2.0], [1.0, 2.00001], None, id="within tolerance"),
        pytest.param([1.0, 2.0], [1.0, 2.1], "1 of 2 rows (row 1: 2.1 instead of 2.0", id="beyond"),
        pytest.param([1.0, np.nan], [1.0, np.nan], None, id="both NaN"),
        pytest.param([1.0, 2.0], [1.0, np.nan], "row 1: nan instead of 2.0", id="one NaN"),
        pytest.param([1, 2], [1, 3], "row 1: 3 instead of 2", id="classes"),
        pytest.param(["a", "b"], ["a", "c"], "row 1: c instead of b", id="texts"),
        pytest.param([1.0, 2.0], [[1.0], [2.0]], None, id="a column"),
        pytest.param([1.0], [[1.0, 2.0]], "gives the shape [1, 2], not [1]", id="shape"),
    ],
)
def test_differences_name_the_first_value(before: Any, after: Any, text: str | None) -> None:
    tolerance = Tolerance(relative=1e-4, absolute=1e-5)
    found = differences(
        Converted(b"", {"predict": np.asarray(before)}, {"predict": np.asarray(after)}, tolerance)
    )
    assert found == [] if text is None else text in found[0]


def test_rows_that_the_estimator_refuses_are_named() -> None:
    estimator = LogisticRegression(max_iter=500).fit(*iris())
    with pytest.raises(ModelInvalid, match=r"refuses the rows.*--rows"):
        predictions_of(estimator, np.zeros((2, 3)))
