"""Reads estimators from skops files: which types are trusted, and the checks of what was read."""

from __future__ import annotations

import math
import zipfile
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from runtime.engines.libraries.sklearn_checks import check_estimator
from runtime.errors import ModelInvalid

_KERNELS = (
    "CompoundKernel", "ConstantKernel", "DotProduct", "Exponentiation", "ExpSineSquared", "Matern",
    "Product", "RBF", "RationalQuadratic", "Sum", "WhiteKernel",
)  # fmt: skip
_MAX_UNPACKED_RATIO: Final = 20
_MIN_UNPACKED_BYTES: Final = 1024**2
_METRICS = ("Euclidean", "Manhattan", "Chebyshev", "Minkowski")
TRUSTED_TYPES = frozenset(
    {
        # Their arrays are checked, or made anew (`sklearn_checks`).
        "sklearn.tree._tree.Tree",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
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
        "scipy.sparse._csr.csr_array",
        "scipy.sparse._csr.csr_matrix",
        # Python code without indexes of its own, which acts on numbers only.
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.cluster._bisect_k_means._BisectingTree",
        "sklearn.cluster._kmeans._kmeans_single_lloyd",
        "sklearn._loss.loss.HalfTweedieLossIdentity",
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        *(f"sklearn.gaussian_process.kernels.{name}" for name in _KERNELS),
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    }
)
"""Types that skops does not trust, and which cannot do harm here."""


def read_estimator(data: bytes, name: str) -> Any:
    """The estimator of a skops file; raises ModelInvalid, or any error of skops."""
    limit = max(_MIN_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * len(data))
    _check_size(data, name, limit)
    skops = import_module("skops.io")
    unknown = sorted(set(skops.get_untrusted_types(data=data)).difference(TRUSTED_TYPES))
    if unknown:
        raise ModelInvalid(
            f"{name} has types that are not trusted: {unknown[:8]}; only types of scikit-learn,"
            " numpy and scipy that skops trusts are read: train without the others, or convert the"
            " model to ONNX"
        )
    try:
        estimator = skops.loads(data, trusted=list(TRUSTED_TYPES))
    except MemoryError as error:
        shape, dtype = getattr(error, "shape", ()), getattr(error, "dtype", None)  # numpy's
        if dtype is None or math.prod(shape) * dtype.itemsize <= limit:
            raise
        raise ModelInvalid(
            f"{name} of {len(data)} bytes names an array of shape {list(shape)}, and cannot hold it"
        ) from None
    check_estimator(estimator)
    return estimator


def _check_size(data: bytes, name: str, limit: int) -> None:
    """A member is unpacked up to the size that the archive states, which is all in memory."""
    try:
        members = zipfile.ZipFile(BytesIO(data)).infolist()
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise ModelInvalid(f"{name} is cut short or no skops file: {error}") from error
    unpacked = sum(member.file_size for member in members)
    if unpacked > limit:
        raise ModelInvalid(
            f"{name} of {len(data)} bytes would take {unpacked} bytes unpacked, at most {limit} are"
            " allowed; save it without compression (skops.io.dump)"
        )
