"""An estimator of scikit-learn that answers requests, wherever it was read. Imports no torch.

What it takes, with values of its columns, is known from the training of its encoders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import BYTES, Tensor, plain_values
from runtime.engines.libraries.rows import (
    Field,
    TabularSignature,
    check_features,
    import_library,
    is_matrix,
    matrix,
    one_line,
    output_tensor,
    texts,
)
from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    import numpy.typing as npt


A_TEXT: Final = np.asarray(["text"], dtype=object)
"""Of a column that a vectoriser takes."""


class SklearnModel:
    """Answers `predict`, or `predict_proba` where the declared task is tabular classification."""

    def __init__(self, estimator: Any, *, wants_probabilities: bool) -> None:
        method = "predict_proba" if wants_probabilities else "predict"
        if not hasattr(estimator, method):
            raise ModelInvalid(f"the {type(estimator).__name__} has no method {method}")
        self._predict = getattr(estimator, method)
        names = getattr(estimator, "feature_names_in_", None)
        self._names: Sequence[str] | None = None if names is None else [str(each) for each in names]
        self._count: int | None = getattr(estimator, "n_features_in_", None)
        centers = getattr(estimator, "cluster_centers_", None)
        self._dtype = None if centers is None else centers.dtype
        """Of rows that k-means takes, which refuses others than it was trained with."""
        self.signature = TabularSignature(self._inputs(estimator))

    def _inputs(self, estimator: Any) -> tuple[Field, ...]:
        if self._count is None:
            return texts()
        if self._names is None:
            return matrix(self._count)
        known = known_values(estimator, self._names, self._count)
        return tuple(_column(name, known.get(index)) for index, name in enumerate(self._names))

    def check(self, inputs: Sequence[Tensor]) -> None:
        if _are_texts(inputs) and self._count is None:
            return  # a vectoriser takes texts
        check_features(inputs, count=self._count, names=self._names)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        try:
            found = self._predict(self._rows(inputs))
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise InvalidRequest(f"the model refused these rows: {one_line(error)}") from error
        if isinstance(found, list):  # one array of probabilities per output
            return tuple(
                output_tensor(np.asarray(each), f"output-{index}")
                for index, each in enumerate(found)
            )
        return (output_tensor(np.asarray(found)),)

    def _rows(self, inputs: Sequence[Tensor]) -> Any:
        """A matrix, a list of texts, or a data frame for a model that knows its columns."""
        if is_matrix(inputs) and self._names is None:
            rows = plain_values(inputs[0])
            return rows if self._dtype is None else rows.astype(self._dtype, copy=False)
        if _are_texts(inputs):
            return list(plain_values(inputs[0]))
        pandas = import_library("pandas", "sklearn")
        if is_matrix(inputs):
            return pandas.DataFrame(plain_values(inputs[0]), columns=self._names)
        columns = {tensor.name: plain_values(tensor).reshape(-1) for tensor in inputs}
        if self._names is None:
            return pandas.DataFrame(columns).to_numpy()
        return pandas.DataFrame({name: columns[name] for name in self._names})


def _column(name: str, values: npt.NDArray[Any] | None) -> Field:
    """`values`: that the model knows of it, None if it takes any numbers."""
    if values is None:
        return Field(name)
    if is_text(values):
        return Field(name, BYTES, example=str(values[0]))
    return Field(name, example=float(values[0]))


def _are_texts(inputs: Sequence[Tensor]) -> bool:
    """Whether the rows are one text each."""
    return len(inputs) == 1 and len(inputs[0].shape) == 1 and inputs[0].datatype == BYTES


def known_values(
    estimator: Any, names: Sequence[str] | None, count: int
) -> dict[int, npt.NDArray[Any]]:
    """By index of a column: its categories, or what takes the place of a missing text.

    `names`: of the columns, where the model was trained on a table; `count`: of the columns.
    """
    found: dict[int, npt.NDArray[Any]] = {}
    first = _steps(estimator)[0]
    parts = getattr(first, "transformers_", None)
    if parts is None:
        return dict(enumerate(_values_of(first)))
    for _, part, chosen in parts:
        if isinstance(part, str):  # passthrough, drop
            continue
        indexes = _indexes(chosen, names, count)
        if isinstance(chosen, str):
            found[indexes[0]] = A_TEXT
        for step in _steps(part):
            found |= dict(zip(indexes, _values_of(step), strict=False))
    return {index: values for index, values in found.items() if len(values)}


def is_text(values: npt.NDArray[Any]) -> bool:
    return len(values) > 0 and isinstance(values[0], str)


def _steps(estimator: Any) -> list[Any]:
    return [step for _, step in getattr(estimator, "steps", [])] or [estimator]


def _values_of(step: Any) -> Iterator[npt.NDArray[Any]]:
    if (categories := getattr(step, "categories_", None)) is not None:
        yield from (np.asarray(each) for each in categories)
    elif np.asarray(getattr(step, "statistics_", 0.0)).dtype.hasobject:
        yield from (np.asarray([each], dtype=object) for each in step.statistics_)


def _indexes(chosen: Any, names: Sequence[str] | None, count: int) -> list[int]:
    """Of the columns that a part of a ColumnTransformer takes, however they were chosen."""
    if isinstance(chosen, str):
        return [list(names or ()).index(chosen)]
    if isinstance(chosen, (int, np.integer)):
        return [int(chosen)]
    if not isinstance(chosen, slice):
        chosen = list(chosen)
        if chosen and isinstance(chosen[0], str):
            return [list(names or ()).index(name) for name in chosen]
    return [int(each) for each in np.arange(count)[chosen]]


LEAF = -1
NEIGHBOUR_INDEXES = frozenset(
    f"{kind}{bits}" for kind in ("KDTree", "BallTree") for bits in ("", "32", "64")
)
FROM_FILES = ("filename", "file")
"""Values of `input` of scikit-learn's vectorisers of texts."""
ENSEMBLES = frozenset({"BaseForest", "BaseGradientBoosting", "BaseHistGradientBoosting"})
"""Classes of scikit-learn that check rows once, and give them to their trees unchecked."""
UNSOUND = "a tree of the model names nodes or features that it does not have"
_CLASSIFIERS = ("c_svc", "nu_svc")


def check_estimator(estimator: Any) -> None:
    """Raise ModelInvalid if a part of a model is unsound. Indexes of neighbours are built anew.

    skops checks no arrays: a tree's node with a child or feature that does not exist, or a support
    vector without coefficients, would make `predict` read foreign memory or never end.
    """
    for part, features in _parts(estimator):
        if hasattr(part, "check_format"):
            _check_sparse(part)
        elif hasattr(part, "_n_support"):
            check_support_vectors(part)
        elif hasattr(part, "_tree") and hasattr(part, "_fit_X"):
            _rebuild_neighbours(part)
        elif type(part).__name__ in NEIGHBOUR_INDEXES:
            raise ModelInvalid(f"the model holds a {type(part).__name__} of its own")
        elif type(part).__name__ == "TreePredictor":
            _check_histogram_tree(part, features)
        elif type(getattr(part, "tree_", None)).__name__ == "Tree":
            _check_tree(part, features)
        elif type(part).__name__ == "BSpline":
            _rebuild_spline(part)
        elif getattr(part, "input", None) in FROM_FILES:
            raise ModelInvalid(
                f"the model's {type(part).__name__} has input={part.input!r} and would read files"
                " that requests name; train it with input='content'"
            )
        if type(part).__name__ == "IsolationForest":
            _check_isolation(part)
        if hasattr(part, "n_trees_per_iteration_") and hasattr(part, "_raw_predict_init"):
            _check_stages(part)


def _check_tree(owner: Any, features: int | None) -> None:
    """`features`: of the ensemble that checks them once for all of its trees, None without one."""
    tree = owner.tree_
    for seen, of in ((owner.n_features_in_, type(owner).__name__), (features, "ensemble")):
        if seen is not None and tree.n_features != seen:
            raise ModelInvalid(
                f"a tree of the model has {tree.n_features} features, its {of} {seen}"
            )
    leaves = tree.children_left == LEAF
    if not (tree.children_right[leaves] == LEAF).all():
        raise ModelInvalid(UNSOUND)
    _check_nodes(
        tree.children_left, tree.children_right, leaves, tree.feature, features=tree.n_features
    )


def _check_histogram_tree(tree: Any, features: int | None) -> None:
    nodes = tree.nodes
    if nodes.dtype.names is None or nodes["is_categorical"].any():
        raise ModelInvalid(
            "the model has trees with categorical features, which are not read; encode the"
            " categories before the model, or convert it to ONNX"
        )
    if features is None:
        raise ModelInvalid("the model holds a tree outside an ensemble")
    _check_nodes(
        nodes["left"].astype(np.int64),
        nodes["right"].astype(np.int64),
        nodes["is_leaf"].astype(bool),
        nodes["feature_idx"],
        features=features,
    )


def _check_stages(ensemble: Any) -> None:
    """Each column of trees adds to a column of the first guesses."""
    row = np.zeros((1, ensemble.n_features_in_), np.float32)
    first, stages = ensemble._raw_predict_init(row).shape, ensemble.estimators_.shape
    if len(stages) != 2 or first != (1, stages[1]):
        raise ModelInvalid(f"the model has trees in the shape {stages} for guesses of {first[1:]}")


def _check_sparse(matrix: Any) -> None:
    try:
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise ModelInvalid(f"a sparse matrix of the model is unsound: {error}") from error


def _rebuild_neighbours(model: Any) -> None:
    """The index of the stored rows, whose links a file may have changed."""
    if model._tree is not None:
        model._tree = type(model._tree)(
            np.asarray(model._fit_X),
            model.leaf_size,
            metric=str(model.effective_metric_),
            **model.effective_metric_params_,
        )


def _rebuild_spline(spline: Any) -> None:
    """Its own constructor checks knots and coefficients, which compiled code indexes."""
    try:
        sound = type(spline)(spline.t, spline.c, int(spline.k), axis=int(spline.axis))
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelInvalid(f"a spline of the model is unsound: {error}") from error
    spline.__dict__.update(sound.__dict__ | {"extrapolate": spline.extrapolate})


def _check_nodes(left: Any, right: Any, is_leaf: Any, feature: Any, *, features: int) -> None:
    """Children have higher numbers than their parents, so every path ends."""
    count = len(left)
    inner = ~is_leaf
    numbers = np.arange(count)[inner]
    is_sound = (
        count > 0
        and all(
            bool((side[inner] > numbers).all() and (side[inner] < count).all())
            for side in (left, right)
        )
        and bool((feature[inner] >= 0).all())
        and bool((feature[inner] < features).all())
    )
    if not is_sound:
        raise ModelInvalid(UNSOUND)


def _parts(root: Any) -> Iterator[tuple[Any, int | None]]:
    """All objects of a model, and the features of the ensemble that each belongs to."""
    seen: set[int] = set()
    waiting: list[tuple[Any, int | None]] = [(root, None)]
    while waiting:
        each, features = waiting.pop()
        if id(each) in seen or isinstance(each, (str, bytes, int, float, type(None))):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            waiting += [(item, features) for item in each.flat] if each.dtype == object else []
        elif isinstance(each, dict):
            waiting += [(item, features) for item in each.values()]
        elif isinstance(each, (list, tuple, set)):
            waiting += [(item, features) for item in each]
        else:
            yield each, features
            inner = _ensemble_features(each)
            own_index = getattr(each, "_tree", None)  # built anew
            waiting += [
                (item, inner)
                for item in getattr(each, "__dict__", {}).values()
                if item is not own_index
            ]


def _ensemble_features(each: Any) -> int | None:
    """The features that an ensemble checks once for all of its trees."""
    kinds = {kind.__name__ for kind in type(each).__mro__}
    return None if kinds.isdisjoint(ENSEMBLES) else getattr(each, "n_features_in_", None)


def _check_isolation(forest: Any) -> None:
    """Each tree takes the columns that the forest chooses for it."""
    for tree, columns in zip(forest.estimators_, forest.estimators_features_, strict=True):
        chosen = np.asarray(columns)
        is_sound = chosen.size == tree.n_features_in_ and bool(
            ((chosen >= 0) & (chosen < forest.n_features_in_)).all()
        )
        if not is_sound:
            raise ModelInvalid(UNSOUND)


def check_support_vectors(machine: Any) -> None:
    """Raise ModelInvalid unless all arrays of a fitted machine fit each other."""
    if machine.kernel == "precomputed" or callable(machine.kernel):
        raise ModelInvalid("a kernel of its own, or a precomputed one, takes no rows of features")
    counts = np.asarray(machine._n_support)
    is_classifier = machine._impl in _CLASSIFIERS
    classes = len(counts) if is_classifier else 2
    vectors, coefficients = machine.support_vectors_, machine._dual_coef_
    total, features = vectors.shape
    pairs = classes * (classes - 1) // 2
    if machine._sparse:
        held, wanted = coefficients.data.size, (classes - 1) * total
    else:
        held, wanted = coefficients.shape, (classes - 1, total)
    used = int(counts.sum() if is_classifier else counts[0])
    is_sound = (
        classes > 1
        and bool((counts >= 0).all())
        and total == used == machine.support_.size
        and features == machine.n_features_in_
        and held == wanted
        and np.size(machine._intercept_) == pairs
        and {np.size(machine._probA), np.size(machine._probB)} <= {0, pairs}
        and (not is_classifier or np.size(machine._probA) == np.size(machine._probB))
    )
    if not is_sound:
        raise ModelInvalid(
            f"the model's {total} support vectors of {features} features do not fit its counts"
            f" {counts.tolist()[:8]} and coefficients"
        )
