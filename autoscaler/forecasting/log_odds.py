"""Probabilities put together by their log-odds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats


def pool(one: Floats, other: Floats, share: float) -> Floats:
    """Two probabilities by the weighted mean of their log-odds (Satopaa et al. 2014)."""
    odds = share * log_odds(one) + (1 - share) * log_odds(other)
    result: Floats = 1 / (1 + np.exp(-odds))
    return result


def log_odds(p: Floats) -> Floats:
    """The log-odds of probabilities, those of almost 0 and 1 bounded."""
    bounded = np.clip(p, 1e-6, 1 - 1e-6)
    result: Floats = np.log(bounded / (1 - bounded))
    return result
