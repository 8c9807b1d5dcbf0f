"""Reads estimators from skops files, which name types and functions and hold no code.

A file may make an object of a trusted type with any attributes, call the type with any arguments,
and have estimators call a trusted function. So types are scikit-learn's own ones in Python, which
neither run nor read anything that their attributes name, and functions are those that compute
scores. Compiled types are here by name: their arrays are checked, or made anew (`sklearn_checks`).
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

from runtime.engines.libraries.sklearn_model import check_estimator
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
