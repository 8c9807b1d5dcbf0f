"""Reads estimators from skops files, which name types and functions and hold no code.

A file may make an object of a trusted type with any attributes, call the type with any arguments,
and have estimators call a trusted function. So types are scikit-learn's own ones in Python, which
neither run nor read anything that their attributes name, and functions are those that compute
scores. Compiled types are here by name: their arrays are checked, or made anew.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Set
from importlib import import_module
from io import BytesIO
from types import FunctionType
from typing import Any, Final

import numpy as np

from runtime.errors import ModelInvalid

_MAX_UNPACKED_RATIO: Final = 20
_MIN_UNPACKED_BYTES: Final = 1024**2
_SCHEMA: Final = "schema.json"
FUNCTION_NODE: Final = "FunctionNode"
_METRICS: Final = ("Euclidean", "Manhattan", "Chebyshev", "Minkowski")
_TYPES: Final = frozenset(
    {
        "numpy.dtype",
        "scipy.interpolate._bsplines.BSpline",
        "scipy.sparse._csr.csr_array",
        "scipy.sparse._csr.csr_matrix",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.tree._tree.Tree",
        "sklearn.utils._bunch.Bunch",
        *(
            f"sklearn.neighbors._{file}.{kind}{bits}"
            for file, kind in (("kd_tree", "KDTree"), ("ball_tree", "BallTree"))
            for bits in ("", "32", "64")
        ),
        *(
            f"sklearn.metrics._dist_metrics.{name}Distance{bits}"
            for name in _METRICS
            for bits in ("", "32", "64")
        ),
    }
)
_FUNCTIONS: Final = frozenset(
    {
        "scipy._lib.array_api_compat.numpy._aliases.asarray",
        "sklearn.cluster._kmeans._kmeans_single_lloyd",
        # Each gives at most as many numbers as it gets; numpy's ufuncs are trusted by skops.
        *(
            f"numpy.{name}"
            for name in (
                "amax", "amin", "angle", "argmax", "argmin", "around", "average", "clip", "cumsum",
                "cumprod", "fix", "imag", "max", "mean", "median", "min", "nan_to_num", "nanmax",
                "nanmean", "nanmedian", "nanmin", "nanstd", "nansum", "nanvar", "prod", "ptp",
                "ravel", "real", "round", "std", "sum", "var",
            )
        ),
    }
)  # fmt: skip
_SCORES: Final = (
    "sklearn.feature_selection._univariate_selection",
    "sklearn.feature_selection._mutual_info",
    "sklearn.metrics._classification",
    "sklearn.metrics._ranking",
    "sklearn.metrics._regression",
    "sklearn.metrics.cluster._supervised",
    "sklearn.metrics.cluster._unsupervised",
)
"""Modules whose public functions compute numbers from numbers."""
_PACKAGES: Final = frozenset(
    {
        "_loss", "calibration", "cluster", "compose", "covariance", "cross_decomposition",
        "decomposition", "discriminant_analysis", "dummy", "ensemble", "feature_extraction",
        "feature_selection", "frozen", "gaussian_process", "impute", "isotonic",
        "kernel_approximation", "kernel_ridge", "linear_model", "manifold", "mixture",
        "model_selection", "multiclass", "multioutput", "naive_bayes", "neighbors",
        "neural_network", "pipeline", "preprocessing", "random_projection", "semi_supervised",
        "svm", "tree",
    }
)  # fmt: skip
"""Of scikit-learn's estimators; not `datasets`, `externals` or `inspection`."""
_MODULES: Final = frozenset({"sklearn.metrics._scorer", "sklearn.utils._metadata_requests"})
_NEVER: Final = frozenset({"tests", "_plot", "_export"})


def read_estimator(data: bytes, name: str) -> Any:
    """The estimator of a skops file; raises ModelInvalid, or any error of skops."""
    limit = max(_MIN_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * len(data))
    schema = _schema(data, name, limit)
    skops = import_module("skops.io")
    named = set(skops.get_untrusted_types(data=data))
    trusted = harmless(named, schema)
    if named > trusted:
        raise ModelInvalid(
            f"{name} has types or functions that are not trusted: {sorted(named - trusted)[:8]};"
            " read are scikit-learn's own estimators and scores, and numpy's ufuncs: train without"
            " the others, or serve the model as a pickle in a pool with --allow-pickle"
        )
    try:
        estimator = skops.loads(data, trusted=list(trusted))
    except MemoryError as error:
        shape, dtype = getattr(error, "shape", ()), getattr(error, "dtype", None)  # numpy's
        if dtype is None or math.prod(shape) * dtype.itemsize <= limit:
            raise
        raise ModelInvalid(
            f"{name} of {len(data)} bytes names an array of shape {list(shape)}, and cannot hold it"
        ) from None
    check_estimator(estimator)
    return estimator


def _schema(data: bytes, name: str, limit: int) -> dict[str, Any]:
    """The file's document. A member is unpacked to the size that the archive states, in memory."""
    try:
        archive = zipfile.ZipFile(BytesIO(data))
        members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise ModelInvalid(f"{name} is cut short or no skops file: {error}") from error
    unpacked = sum(member.file_size for member in members)
    if unpacked > limit:
        raise ModelInvalid(
            f"{name} of {len(data)} bytes would take {unpacked} bytes unpacked, at most {limit} are"
            " allowed; save it without compression (skops.io.dump)"
        )
    try:
        schema: dict[str, Any] = json.loads(archive.read(_SCHEMA))
    except (KeyError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise ModelInvalid(f"{name} is damaged or no skops file: {error}") from error
    return schema


def harmless(names: Iterable[str], schema: Mapping[str, Any]) -> set[str]:
    """Those of a file's names that may be used; `schema`: the file's own document.

    A function is refused where the file has more than a reference to it, such as a call.
    """
    used = _loaders(schema)
    return {name for name in names if _is_harmless(name, used.get(name, frozenset()))}


def _is_harmless(name: str, loaders: Set[str]) -> bool:
    if name in _TYPES:
        return True
    is_reference = loaders == {FUNCTION_NODE}
    if name in _FUNCTIONS:
        return is_reference
    module, _, attribute = name.rpartition(".")
    if module not in _SCORES and not _is_of_estimators(module):
        return False
    found = _found(module, attribute)
    if isinstance(found, type):
        return found.__module__ == module
    is_score = module in _SCORES and not attribute.startswith("_")
    return is_reference and is_score and isinstance(found, FunctionType)


def _is_of_estimators(module: str) -> bool:
    parts = module.split(".")
    return module in _MODULES or (
        len(parts) > 1
        and parts[0] == "sklearn"
        and parts[1] in _PACKAGES
        and _NEVER.isdisjoint(parts)
    )


def _found(module: str, attribute: str) -> Any:
    """What a Python module of scikit-learn has by this name; None without one."""
    try:
        imported = import_module(module)
    except (ImportError, ValueError):
        return None
    is_python = str(getattr(imported, "__file__", "")).endswith(".py")
    return getattr(imported, attribute, None) if is_python else None


def _loaders(schema: Mapping[str, Any]) -> dict[str, set[str]]:
    """By name of a type or function: the kinds of the nodes that name it."""
    found: dict[str, set[str]] = {}
    for node in _nodes(schema):
        name = f"{node['__module__']}.{node['__class__']}"
        found.setdefault(name, set()).add(str(node["__loader__"]))
    return found


def _nodes(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if {"__module__", "__class__", "__loader__"} <= each.keys():
                yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


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
