"""Estimators of scikit-learn with compiled parts: read where sound, refused where changed."""

from collections.abc import Callable
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

from runtime.engines.libraries.skops_file import check_estimator
from runtime.errors import ModelInvalid
from tests.runtime.engines.libraries.loaded import load
from tests.tabular_models import iris

csr_matrix = import_module("scipy.sparse").csr_matrix


def _fitted(estimator: Any) -> Any:
    return estimator.fit(*iris())


def _boosted() -> Any:
    return _fitted(GradientBoostingClassifier(n_estimators=2))


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


def _vectors_without_coefficients() -> Any:
    machine = _fitted(SVC())
    machine._dual_coef_ = machine._dual_coef_[:, :1].copy()
    return machine


def _counts_beyond_the_vectors() -> Any:
    machine = _fitted(SVC())
    machine._n_support = np.asarray([1000, -900, -46], np.int32)
    return machine


def _narrow_vectors() -> Any:
    machine = _fitted(SVC())
    machine.support_vectors_ = machine.support_vectors_[:, :2].copy()
    return machine


def _intercepts_too_few() -> Any:
    machine = _fitted(SVC())
    machine._intercept_ = machine._intercept_[:1].copy()
    return machine


def _more_columns_of_trees_than_guesses() -> Any:
    model = _boosted()
    model.estimators_ = np.concatenate([model.estimators_] * 9, axis=1)
    return model


def _boosted_tree_of_other_features() -> Any:
    features, classes = iris()
    model = _boosted()
    wide = GradientBoostingClassifier(n_estimators=3).fit(np.tile(features, 9), classes)
    model.estimators_[1, 1] = wide.estimators_[0, 0]
    return model


def _histogram_tree_with(field: str, value: int) -> Any:
    model = _fitted(HistGradientBoostingClassifier(max_iter=2))
    model._predictors[1][0].nodes[field][0] = value
    return model


@pytest.mark.parametrize(
    "make",
    [
        _tree_with_a_child_that_is_not_there,
        _vectors_without_coefficients,
        _counts_beyond_the_vectors,
        _narrow_vectors,
        _intercepts_too_few,
        _more_columns_of_trees_than_guesses,
        _boosted_tree_of_other_features,
        pytest.param(lambda: _histogram_tree_with("left", 9999), id="child that is not there"),
        pytest.param(lambda: _histogram_tree_with("right", 0), id="circle"),
        pytest.param(lambda: _histogram_tree_with("feature_idx", 4), id="feature not there"),
        pytest.param(lambda: _histogram_tree_with("is_categorical", 1), id="categories"),
    ],
)
def test_unsound_models_are_refused(make: Callable[[], Any], tmp_path: Path) -> None:
    skops.io.dump(make(), tmp_path / "model.skops")
    with pytest.raises(ModelInvalid):
        load(tmp_path)


def test_a_changed_index_of_neighbours_is_built_anew() -> None:
    model = _fitted(KNeighborsClassifier(algorithm="kd_tree", leaf_size=5))
    state = list(model._tree.__getstate__())
    indexes = next(each for each in state if isinstance(each, np.ndarray) and each.dtype == np.intp)
    indexes[:] = 2**40
    model._tree.__setstate__(tuple(state))
    check_estimator(model)
    assert sorted(model._tree.get_arrays()[1]) == list(range(len(iris()[0])))


def test_sparse_vectors_beyond_their_columns_are_refused(tmp_path: Path) -> None:
    features, classes = iris()
    machine = SVC().fit(csr_matrix(features), classes)
    machine.support_vectors_.indices[0] = 2**20
    skops.io.dump(machine, tmp_path / "model.skops")
    with pytest.raises(ModelInvalid):
        load(tmp_path)
