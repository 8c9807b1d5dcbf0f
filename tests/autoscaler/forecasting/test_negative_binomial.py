"""Quantiles, zeros and moments of counts."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.forecasting import negative_binomial as nb

LEVELS = (0.05, 0.5, 0.9, 0.99)


@pytest.mark.parametrize("mean", [0.001, 0.3, 4.0, 40.0, 300.0, 20_000.0])
@pytest.mark.parametrize("size", [0.1, 1.0, 8.0, 1e6])
def test_quantiles_match_sampled_counts(mean: float, size: float) -> None:
    rng = np.random.default_rng(5)
    drawn = rng.poisson(rng.gamma(size, mean / size, 200_000))
    found = nb.quantiles(np.array([mean]), np.array([size]), LEVELS)[0]
    for level, quantile in zip(LEVELS, found, strict=True):
        slack = 0.01
        assert (drawn <= quantile + 1).mean() >= level - slack
        assert (drawn < quantile - 1).mean() <= level + slack


def test_size_from_p_arrival() -> None:
    mean, size = np.array([0.2, 2.0, 7.0]), np.array([0.3, 1.0, 2.5])
    assert nb.size_of_zeros(mean, nb.p_at_least_one(mean, size)) == pytest.approx(size, rel=1e-3)


def test_size_from_moments() -> None:
    rng = np.random.default_rng(3)
    mean, size = np.full(200_000, 6.0), 2.0
    drawn = rng.poisson(rng.gamma(size, mean / size))
    found = nb.size_of_moments(mean.sum(), ((drawn - mean) ** 2).sum(), (mean**2).sum())
    assert float(found) == pytest.approx(size, rel=0.05)
