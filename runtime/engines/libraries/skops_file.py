"""Reads estimators from skops files: which types are trusted, and the checks of what was read."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from runtime.engines.libraries.sklearn_checks import check_estimator
from runtime.errors import ModelInvalid

_KERNELS = (
    "CompoundKernel", "ConstantKernel", "DotProduct", "Exponentiation", "ExpSineSquared", "Matern",
    "Product", "RBF", "RationalQuadratic", "Sum", "WhiteKernel",
)  # fmt: skip
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
    skops = import_module("skops.io")
    unknown = sorted(set(skops.get_untrusted_types(data=data)).difference(TRUSTED_TYPES))
    if unknown:
        raise ModelInvalid(
            f"{name} has types that are not trusted: {unknown[:8]}; only types of scikit-learn,"
            " numpy and scipy that skops trusts are read: train without the others, or convert the"
            " model to ONNX"
        )
    estimator = skops.loads(data, trusted=list(TRUSTED_TYPES))
    check_estimator(estimator)
    return estimator
