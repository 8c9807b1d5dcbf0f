"""The class probabilities of a request after a look at its data; Wolfrath et al. 2025, section 4.2.

The class frequencies have a Dirichlet prior; the labels of the nearest training examples are
multinomial evidence. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from registry.domain.application import Prior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

JEFFREYS: Final = 0.5
"""The uninformative prior's weight of each class; section 6.3.3."""


def prior_weights(
    kind: Prior, classes: int, frequencies: Sequence[float] = (), requests_per_window: float = 1.0
) -> NDArray[np.float64]:
    """The weights alpha_i of a prior; `frequencies` of the classes are stated, and sum to 1.

    `weak` takes the frequencies, `strong` the requests of each class expected in a window.
    """
    if kind is Prior.UNINFORMATIVE:
        return np.full(classes, JEFFREYS)
    if len(frequencies) != classes:
        raise ValueError(f"a {kind} prior needs {classes} frequencies, got {len(frequencies)}")
    stated = np.asarray(frequencies, np.float64)
    return stated * requests_per_window if kind is Prior.STRONG else stated


def class_probabilities(alpha: ArrayLike, evidence: ArrayLike) -> NDArray[np.float64]:
    """The mean of the posterior Dirichlet(alpha + y) (eq. 11), for evidence [..., classes]."""
    weights = np.asarray(alpha, np.float64) + np.asarray(evidence, np.float64)
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities
