"""Checks of scikit-learn's support vector machines, whose arrays libsvm indexes by their counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.errors import ModelInvalid

_CLASSIFIERS = ("c_svc", "nu_svc")


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
