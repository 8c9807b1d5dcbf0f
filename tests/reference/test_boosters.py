"""XGBoost's and LightGBM's objectives answer as the libraries do, however the model was saved."""

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from common.inference_protocol.tensors import numeric_tensor
from tests.reference.outcomes import Outcomes
from tests.runtime.engines.libraries.loaded import load

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("ignore")]
ROWS, FEATURES, ASKED = 120, 4, 9
XGBOOST: dict[str, dict[str, Any]] = {
    "reg:squarederror": {}, "reg:absoluteerror": {}, "reg:pseudohubererror": {},
    "reg:gamma": {}, "reg:tweedie": {}, "count:poisson": {}, "reg:logistic": {},
    "reg:quantileerror": {"quantile_alpha": 0.3}, "binary:logistic": {}, "binary:logitraw": {},
    "binary:hinge": {}, "multi:softmax": {"num_class": 3}, "multi:softprob": {"num_class": 3},
    "rank:ndcg": {}, "rank:pairwise": {}, "survival:aft": {},
    "dart": {"booster": "dart", "rate_drop": 0.3}, "gblinear": {"booster": "gblinear"},
    "base_score": {"base_score": 0.3}, "forest": {"num_parallel_tree": 4, "subsample": 0.7},
}  # fmt: skip
LIGHTGBM: dict[str, dict[str, Any]] = {
    "regression": {}, "regression_l1": {}, "huber": {}, "quantile": {"alpha": 0.3}, "poisson": {},
    "gamma": {}, "tweedie": {}, "mape": {}, "cross_entropy": {}, "binary": {},
    "multiclass": {"num_class": 3}, "multiclassova": {"num_class": 3}, "lambdarank": {},
    "dart": {"boosting": "dart"}, "rf": {"boosting": "rf", "bagging_freq": 1, "subsample": 0.7},
}  # fmt: skip


def _data(objective: str) -> tuple[Any, Any]:
    """Rows with missing numbers, and a target that the objective takes."""
    features = np.random.RandomState(0).normal(size=(ROWS, FEATURES))
    target = np.abs(features[:, 0]) + 0.1
    features[::5, 1] = np.nan
    if any(each in objective for each in ("multi", "rank")):
        return features, (target > 0.4).astype(int) + (target > 1)
    if any(each in objective for each in ("binary", "logistic", "entropy")):
        return features, (target > 0.6).astype(int)
    return features, target


def _compare(folder: Path, rows: Any, expected: Any) -> None:
    model = load(folder)
    (output,) = model.v2([numeric_tensor("rows", rows)])
    np.testing.assert_allclose(output.data, expected, rtol=1e-5)
    instances = [[None if np.isnan(each) else each for each in row] for row in rows.tolist()]
    np.testing.assert_allclose(model.v1(instances), expected, rtol=1e-5)


@pytest.mark.parametrize("suffix", ["ubj", "json"])
@pytest.mark.parametrize("name", XGBOOST)
def test_xgboost(name: str, suffix: str, outcomes: Outcomes, tmp_path: Path) -> None:
    with outcomes.judge("XGBoost", name):
        features, target = _data(name)
        options = {"objective": name, "max_depth": 3, "nthread": 1} if ":" in name else {}
        matrix = xgboost.DMatrix(features, target)
        if name.startswith("rank"):
            matrix.set_group([ROWS // 4] * 4)
        if name.startswith("survival"):
            matrix.set_float_info("label_lower_bound", target)
            matrix.set_float_info("label_upper_bound", target + 1)
        booster = xgboost.train(options | XGBOOST[name], matrix, 5)
        booster.save_model(tmp_path / f"model.{suffix}")
        rows = features[:ASKED]
        _compare(tmp_path, rows, booster.predict(xgboost.DMatrix(rows)))


@pytest.mark.parametrize("name", LIGHTGBM)
def test_lightgbm(name: str, outcomes: Outcomes, tmp_path: Path) -> None:
    with outcomes.judge("LightGBM", name):
        features, target = _data(name)
        group = [ROWS // 4] * 4 if name == "lambdarank" else None
        options = LIGHTGBM[name] if "boosting" in LIGHTGBM[name] else {"objective": name}
        options = {"verbose": -1, "num_threads": 1, "min_data_in_leaf": 5} | options
        data = lightgbm.Dataset(features, target, group=group)
        booster = lightgbm.train(options | LIGHTGBM[name], data, 5)
        booster.save_model(tmp_path / "model.txt")
        rows = features[:ASKED]
        _compare(tmp_path, rows, booster.predict(rows))


def test_xgboost_saved_by_its_estimator_after_early_stopping(
    outcomes: Outcomes, tmp_path: Path
) -> None:
    """As KServe's xgbserver: all trees of the file, which Booster.predict takes as well."""
    with outcomes.judge("XGBoost", "early stopping"):
        features, target = _data("binary")
        model = xgboost.XGBClassifier(n_estimators=30, early_stopping_rounds=2, n_jobs=1)
        model.fit(features, target, eval_set=[(features[:30], 1 - target[:30])], verbose=False)
        model.save_model(tmp_path / "model.ubj")
        rows = features[:ASKED]
        stored = xgboost.Booster(model_file=tmp_path / "model.ubj")
        _compare(tmp_path, rows, stored.predict(xgboost.DMatrix(rows)))


def test_lightgbm_after_early_stopping(outcomes: Outcomes, tmp_path: Path) -> None:
    """The file holds the best iteration only."""
    with outcomes.judge("LightGBM", "early stopping"):
        features, target = _data("binary")
        model = lightgbm.LGBMClassifier(n_estimators=30, verbose=-1, n_jobs=1)
        stop = lightgbm.early_stopping(2, verbose=False)
        model.fit(features, target, eval_set=[(features[:30], 1 - target[:30])], callbacks=[stop])
        model.booster_.save_model(tmp_path / "model.txt")
        rows = features[:ASKED]
        _compare(tmp_path, rows, model.predict_proba(rows)[:, 1])


def test_lightgbm_with_categories(outcomes: Outcomes, tmp_path: Path) -> None:
    with outcomes.judge("LightGBM", "categories"):
        features, target = _data("regression")
        features[:, 3] = np.arange(ROWS) % 7
        data = lightgbm.Dataset(features, target, categorical_feature=[3])
        options = {"verbose": -1, "min_data_per_group": 5, "cat_smooth": 1, "num_threads": 1}
        booster = lightgbm.train(options, data, 5)
        booster.save_model(tmp_path / "model.txt")
        _compare(tmp_path, features[:ASKED], booster.predict(features[:ASKED]))
