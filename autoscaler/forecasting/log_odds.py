"""Combines probabilities by their log-odds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats


def pool_log_odds(one: Floats, other: Floats, weight: Floats | float) -> Floats:
    """The weighted mean of the log-odds of two probabilities (Satopaa et al. 2014)."""
    odds = weight * _log_odds(one) + (1 - weight) * _log_odds(other)
    result: Floats = 1 / (1 + np.exp(-odds))
    return result


def _log_odds(p: Floats) -> Floats:
    bounded = np.clip(p, 1e-6, 1 - 1e-6)
    result: Floats = np.log(bounded / (1 - bounded))
    return result
