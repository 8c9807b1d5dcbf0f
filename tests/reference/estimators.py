"""Every estimator of scikit-learn, trained on rows that it takes."""

import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import all_estimators, get_tags
from sklearn.utils._test_common.instance_generator import _construct_instances

ROWS = 60
ASKED = 7
_OF_LABELS = ("LabelBinarizer", "LabelEncoder", "MultiLabelBinarizer")
_POSITIVE = ("ComplementNB", "MultinomialNB", "SkewedChi2Sampler")
_WITHOUT_ROWS = ("DictVectorizer", "FeatureHasher", "FrozenEstimator", "PLSSVD", "PatchExtractor")
"""They take objects, another estimator, rows with targets, and pictures."""
NAMES = sorted(name for name, _ in all_estimators() if name not in _WITHOUT_ROWS)
TEXTS = ["good film", "bad film of all films"] * (ROWS // 2)


def trained(name: str) -> tuple[Any, Any]:
    """The model, and rows to ask it; a transformer is the first step of a pipeline.

    Raises ValueError or TypeError where the estimator takes no rows of features with a target.
    """
    estimator = next(iter(_construct_instances(dict(all_estimators())[name])))
    rows, target = _rows(name, estimator), _target(name, estimator)
    if name == "SparseCoder":
        estimator.set_params(dictionary=np.eye(rows.shape[1]))
    if name == "DummyClassifier":
        estimator.set_params(strategy="prior")  # its default is drawn at random here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in _OF_LABELS:
            return estimator.fit([[1, 2], [3]] if name == _OF_LABELS[2] else [1, 2]), [1]
        estimator.fit(rows, target)
        if not hasattr(estimator, "predict") and hasattr(estimator, "transform"):
            final = LinearRegression() if np.ndim(target) > 1 else LogisticRegression()
            estimator = make_pipeline(estimator, final).fit(rows, target)
    return estimator, rows[:ASKED]


def _rows(name: str, estimator: Any) -> Any:
    tags = get_tags(estimator).input_tags
    values = np.random.RandomState(0).normal(size=(ROWS, 4))
    if tags.positive_only or name in _POSITIVE:
        return np.abs(values)
    if name == "CategoricalNB":
        return (np.abs(values) * 2).astype(np.int64)
    if name == "IsotonicRegression":
        return values[:, :1]
    if tags.string and not tags.two_d_array:
        return TEXTS
    if name == "MissingIndicator":
        values[::3, :2] = np.nan
    return np.abs(values @ values.T) if tags.pairwise else values


def _target(name: str, estimator: Any) -> Any:
    tags = get_tags(estimator)
    values = np.random.RandomState(0).normal(size=(ROWS, 4))
    is_regressor = name.endswith("Regressor") or tags.estimator_type == "regressor"
    one = np.abs(values[:, 0]) + values[:, 1] ** 2 + 0.1
    target = one if is_regressor else (values[:, 0] + values[:, 1] > 0).astype(np.int64)
    if tags.target_tags.multi_output and not tags.target_tags.single_output:
        return np.column_stack([target, target if is_regressor else 1 - target])
    return target
