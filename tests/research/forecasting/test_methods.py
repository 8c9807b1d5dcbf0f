import numpy as np
import pytest

from research.forecasting.methods import size_of_moments


def test_size_from_moments() -> None:
    rng = np.random.default_rng(3)
    mean, size = np.full(200_000, 6.0), 2.0
    drawn = rng.poisson(rng.gamma(size, mean / size))
    found = size_of_moments(mean.sum(), ((drawn - mean) ** 2).sum(), (mean**2).sum())
    assert float(found) == pytest.approx(size, rel=0.05)
