"""Estimators of scikit-learn with compiled parts: right where sound, contained where changed."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC, SVR, OneClassSVM
from sklearn.tree import DecisionTreeClassifier

from runtime.errors import InferenceFailed, InferenceHung, ModelInvalid
from tests.runtime.engines.libraries.loaded import load
from tests.tabular_models import iris

csr_matrix = import_module("scipy.sparse").csr_matrix


def _fitted(estimator: Any) -> Any:
    return estimator.fit(*iris())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(SVC, id="svc"),
        pytest.param(SVR, id="svr"),
        pytest.param(OneClassSVM, id="one-class-svm"),
        pytest.param(lambda: GradientBoostingClassifier(n_estimators=3), id="gradient-boosting"),
        pytest.param(lambda: HistGradientBoostingClassifier(max_iter=3), id="histogram-boosting"),
        pytest.param(lambda: RandomForestClassifier(n_estimators=3), id="forest"),
        pytest.param(KNeighborsClassifier, id="neighbours"),
        pytest.param(lambda: MLPClassifier(max_iter=5), id="perceptron"),
        pytest.param(lambda: CalibratedClassifierCV(LogisticRegression()), id="calibrated"),
        pytest.param(lambda: KMeans(3), id="k-means"),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimators_answer_as_scikit_learn(make: Callable[[], Any], tmp_path: Path) -> None:
    estimator = _fitted(make())
    skops.io.dump(estimator, tmp_path / "model.skops")
    rows = iris()[0][::50]
    np.testing.assert_allclose(load(tmp_path).v1(rows.tolist()), estimator.predict(rows))


def test_a_machine_trained_on_sparse_rows_is_read(tmp_path: Path) -> None:
    features, classes = iris()
    machine = SVC().fit(csr_matrix(features), classes)
    skops.io.dump(machine, tmp_path / "model.skops")
    assert load(tmp_path).v1(features[::50].tolist()) == [0, 1, 2]


def _tree_with_a_child_that_is_not_there() -> Any:
    model = _fitted(DecisionTreeClassifier(max_depth=2))
    model.tree_.children_left[0] = 500
    return model


def _histogram_tree_with(field: str, value: int) -> Any:
    model = _fitted(HistGradientBoostingClassifier(max_iter=2))
    model._predictors[1][0].nodes[field][0] = value
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        _tree_with_a_child_that_is_not_there,
        pytest.param(lambda: _histogram_tree_with("left", 9999), id="child that is not there"),
        pytest.param(lambda: _histogram_tree_with("right", 0), id="circle", marks=pytest.mark.slow),
    ],
)
def test_unsound_models_end_or_hold_up_their_own_process_alone(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    near, unsound = tmp_path / "near", tmp_path / "unsound"
    for folder, model in ((near, _fitted(LogisticRegression(max_iter=500))), (unsound, make())):
        folder.mkdir()
        skops.io.dump(model, folder / "model.skops")
    rows = iris()[0][::50].tolist()
    with suppress(ModelInvalid, InferenceFailed, InferenceHung):  # or an answer without meaning
        load(unsound).v1(rows)
    assert load(near).v1(rows) == [0, 1, 2]
