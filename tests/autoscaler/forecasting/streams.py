"""Streams of arrivals with known forecasts."""

import numpy as np

from autoscaler.forecasting.history import History, Integers
from research.forecasting.backtest import history_at

DAY = 1440


def poisson(rate_per_min: float, *, models: int, minutes: int, seed: int = 0) -> Integers:
    """(models, minutes): independent minutes."""
    rng = np.random.default_rng(seed)
    return rng.poisson(rate_per_min, (models, minutes)).astype(np.uint32)


def hourly(*, models: int, minutes: int, phase: int = 7, count: int = 1) -> Integers:
    """Once an hour, at the same minute."""
    counts = np.zeros((models, minutes), dtype=np.uint32)
    counts[:, phase::60] = count
    return counts


def of(counts: Integers, minute: int | None = None) -> History:
    """The history at a minute of a stream; by default at its end."""
    return history_at(counts, counts.shape[1] if minute is None else minute)
