"""Types and functions of skops files: libraries' own are used, others refused, harm contained."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import skops.io
from sklearn.cluster import FeatureAgglomeration
from sklearn.ensemble import RandomForestClassifier, StackingClassifier, VotingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectKBest, SelectPercentile, chi2, mutual_info_classif
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multioutput import ClassifierChain
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, SplineTransformer
from sklearn.tree import DecisionTreeClassifier

from runtime.errors import InferenceFailed, ModelInvalid
from tests.runtime.engines.libraries.loaded import load
from tests.runtime.sandbox.hostile_pickles import Calls, saved
from tests.tabular_models import iris


def _tree() -> Any:
    return DecisionTreeClassifier(max_depth=3, random_state=0)


def _before_regression(step: Any) -> Any:
    return make_pipeline(step, LogisticRegression(max_iter=500))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: make_pipeline(SimpleImputer(strategy="median"), _tree()), id="dtype"),
        pytest.param(lambda: _before_regression(KBinsDiscretizer()), id="bins"),
        pytest.param(lambda: _before_regression(SelectKBest(k=2)), id="f_classif"),
        pytest.param(lambda: _before_regression(SelectKBest(chi2, k=2)), id="chi2"),
        pytest.param(
            lambda: _before_regression(SelectPercentile(mutual_info_classif)), id="information"
        ),
        pytest.param(lambda: _before_regression(SplineTransformer()), id="splines"),
        pytest.param(lambda: _before_regression(FeatureAgglomeration()), id="a pooling of numpy"),
        pytest.param(lambda: _before_regression(FunctionTransformer(np.log1p)), id="a ufunc"),
        pytest.param(
            lambda: _before_regression(FunctionTransformer(np.nan_to_num)), id="elementwise"
        ),
        pytest.param(
            lambda: VotingClassifier([("a", LogisticRegression(max_iter=500)), ("b", _tree())]),
            id="votes",
        ),
        pytest.param(
            lambda: StackingClassifier([("a", _tree()), ("b", _tree())], _tree()),
            id="a tree over the guesses of trees",
        ),
        pytest.param(
            lambda: GridSearchCV(
                RandomForestClassifier(n_estimators=3, random_state=0),
                {"max_depth": [2, 3]},
                scoring={
                    "f1": sklearn.metrics.make_scorer(sklearn.metrics.f1_score, average="macro"),
                    "accuracy": "accuracy",
                },
                refit="f1",
                cv=StratifiedKFold(3),
            ),
            id="a search with scorers",
        ),
    ],
)
def test_parts_of_pipelines_are_read(make: Callable[[], Any], tmp_path: Path) -> None:
    features, classes = iris()
    model = make().fit(features, classes)
    skops.io.dump(model, tmp_path / "model.skops")
    rows = features[::20]
    assert load(tmp_path).v1(rows.tolist()) == model.predict(rows).tolist()


def test_trees_of_a_chain_may_have_more_features_than_the_chain(tmp_path: Path) -> None:
    features, classes = iris()
    chain = ClassifierChain(_tree()).fit(features, np.column_stack([classes > 0, classes > 1]))
    skops.io.dump(chain, tmp_path / "model.skops")
    assert load(tmp_path).v1(features[:1].tolist()) == chain.predict(features[:1]).tolist()


@pytest.mark.parametrize("function", [eval, open, os.system, subprocess.run])
def test_functions_of_other_packages_are_refused_by_name(function: Any, tmp_path: Path) -> None:
    skops.io.dump(FunctionTransformer(function), tmp_path / "model.skops")
    with pytest.raises(ModelInvalid, match=rf"[Uu]ntrusted.*{function.__name__}"):
        load(tmp_path)


def test_a_model_that_reads_files_named_by_requests_reads_none_of_the_pod(tmp_path: Path) -> None:
    model = make_pipeline(CountVectorizer(), MultinomialNB()).fit(["good", "bad"], [1, 0])
    model[0].set_params(input="filename")
    skops.io.dump(model, tmp_path / "model.skops")
    secret = tmp_path / "secret.txt"
    secret.write_text("good")
    assert model.predict([str(secret)]) == [1]
    with pytest.raises(InferenceFailed, match="PermissionError"):
        load(tmp_path).v1([str(secret)])


def test_a_pickle_under_the_name_of_skops_is_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / "model.skops").write_bytes(saved(Calls(os._exit, 3)))
    with pytest.raises(ModelInvalid, match="BadZipFile"):
        load(tmp_path)
