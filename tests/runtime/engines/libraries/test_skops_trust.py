"""Types and functions of skops files: scikit-learn's own are used, harmful ones are refused."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import sklearn.metrics
import sklearn.tree
import skops.io
from sklearn.cluster import FeatureAgglomeration
from sklearn.ensemble import (
    IsolationForest,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
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

from runtime.errors import ModelInvalid
from tests.runtime.engines.libraries.loaded import load
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


@pytest.mark.parametrize(
    "function",
    [
        np.load,
        np.savetxt,
        np.repeat,
        sklearn.datasets.load_files,
        sklearn.tree.export_graphviz,
        sklearn.metrics.get_scorer,
        eval,
    ],
)
def test_other_functions_are_refused_by_name(function: Any, tmp_path: Path) -> None:
    skops.io.dump(FunctionTransformer(function), tmp_path / "model.skops")
    with pytest.raises(ModelInvalid, match=rf"not trusted: \['[a-z_.]*{function.__name__}'\]"):
        load(tmp_path)


def _edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(members["schema.json"])
    change(document)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            text = json.dumps(document).encode() if name == "schema.json" else content
            archive.writestr(name, text)


def test_a_file_calls_no_function(tmp_path: Path) -> None:
    def call(document: dict[str, Any]) -> None:
        attributes = document["content"]["content"]
        attributes["func"] |= {
            "__loader__": "ConstructorFromReduceNode",
            "content": {
                "__class__": "tuple",
                "__module__": "builtins",
                "__loader__": "TupleNode",
                "content": [],
            },
        }

    path = tmp_path / "model.skops"
    skops.io.dump(FunctionTransformer(np.mean), path)
    _edited(path, call)
    with pytest.raises(ModelInvalid, match=r"not trusted: \['numpy.mean'\]"):
        load(tmp_path)


def test_a_model_that_reads_files_named_by_requests_is_refused(tmp_path: Path) -> None:
    model = make_pipeline(CountVectorizer(), MultinomialNB()).fit(["good", "bad"], [1, 0])
    model[0].set_params(input="filename")
    skops.io.dump(model, tmp_path / "model.skops")
    with pytest.raises(ModelInvalid, match="would read files that requests name"):
        load(tmp_path)


def test_an_unsound_spline_is_refused(tmp_path: Path) -> None:
    model = make_pipeline(SplineTransformer(), LogisticRegression(max_iter=500)).fit(*iris())
    spline = model[0].bsplines_[0]
    spline._c = spline._c[:2].copy()
    skops.io.dump(model, tmp_path / "model.skops")
    with pytest.raises(ModelInvalid, match="spline"):
        load(tmp_path)


def test_a_tree_that_sees_other_columns_than_its_forest_gives_is_refused(tmp_path: Path) -> None:
    forest = IsolationForest(n_estimators=2, max_features=0.5).fit(iris()[0])
    forest.estimators_features_[1] = forest.estimators_features_[1][:1]
    skops.io.dump(forest, tmp_path / "model.skops")
    with pytest.raises(ModelInvalid):
        load(tmp_path)
