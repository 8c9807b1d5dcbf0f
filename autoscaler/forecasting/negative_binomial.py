"""The negative binomial distribution by mean and size, vectorised: quantiles, zeros, moments.

A Poisson count whose rate is gamma distributed: variance = mean + mean^2 / size; a large size means
Poisson. scipy is not a dependency, and its `nbinom.ppf` searches for every value.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np

from autoscaler.forecasting.history import Floats

MIN_SIZE: Final = 0.01
MAX_SIZE: Final = 1e6
_SHAPE_RANGE: Final = (MIN_SIZE / 2, 1e6)
_EXACT: Final = 48
"""Quantiles up to this count are exact, larger ones from the gamma distribution."""


def p_at_least_one(mean: Floats, size: Floats) -> Floats:
    """Probability of at least one: 1 - (1 + mean/size)^-size."""
    return -np.expm1(-size * np.log1p(mean / size))


def quantiles(mean: Floats, size: Floats, probabilities: tuple[float, ...]) -> Floats:
    """(..., probabilities): the smallest counts with at least these cumulative probabilities."""
    size = np.clip(size, MIN_SIZE, MAX_SIZE)
    found = _exact(mean, size, np.asarray(probabilities))
    large = np.isnan(found)
    if large.any():
        approximate = np.maximum(_of_gamma(mean, size, probabilities), _EXACT)
        found = np.where(large, approximate, found)
    return np.maximum.accumulate(found, axis=-1)


def size_of_zeros(mean: Floats, p_arrival: Floats) -> Floats:
    """The size with which a count of this mean is zero with probability 1 - `p_arrival`.

    For a mean below -log(1 - p) no such size exists; the result is about `MAX_SIZE`, Poisson.
    """
    low = np.full(np.shape(mean), math.log(MIN_SIZE))
    high = np.full(np.shape(mean), math.log(MAX_SIZE))
    for _ in range(30):
        middle = (low + high) / 2
        is_less = p_at_least_one(mean, np.exp(middle)) < p_arrival
        low = np.where(is_less, middle, low)
        high = np.where(is_less, high, middle)
    result: Floats = np.exp((low + high) / 2)
    return result


def _exact(mean: Floats, size: Floats, probabilities: Floats) -> Floats:
    """Quantiles up to `_EXACT`, by the sum of probabilities; NaN above."""
    mass = np.exp(-size * np.log1p(mean / size))
    ratio = mean / (mean + size)
    total = mass.copy()
    found = np.where(total[..., None] >= probabilities, 0.0, np.nan)
    for count in range(1, _EXACT + 1):
        mass = mass * (count - 1 + size) / count * ratio
        total = total + mass
        reached = np.isnan(found) & (total[..., None] >= probabilities)
        if reached.any():
            found[reached] = count
    return found


def _of_gamma(mean: Floats, size: Floats, probabilities: tuple[float, ...]) -> Floats:
    """Quantiles of the gamma with the same mean and variance, an approximation for large counts."""
    variance = mean + mean * mean / size
    shape = np.clip(mean * mean / np.maximum(variance, 1e-300), *_SHAPE_RANGE)
    scale = variance / np.maximum(mean, 1e-300)
    logs, table = _gamma_table(probabilities)
    at = np.log(shape)
    columns = [np.interp(at, logs, column) for column in table.T]
    return np.ceil(np.stack(columns, axis=-1) * (shape * scale)[..., None])


@lru_cache(maxsize=16)
def _gamma_table(probabilities: tuple[float, ...]) -> tuple[Floats, Floats]:
    """(shapes,) logarithms of shapes and (shapes, probabilities) quantiles divided by the shape."""
    low, high = _SHAPE_RANGE
    logs = np.linspace(math.log(low), math.log(high), 160)
    return logs, np.array([_gamma_quantiles(math.exp(each), probabilities) for each in logs])


def _gamma_quantiles(shape: float, probabilities: tuple[float, ...]) -> list[float]:
    """Quantiles of a gamma with scale 1 over its shape, by integrating over the logarithm."""
    if shape > 1e4:  # Wilson and Hilferty 1931; its error is far below one count here
        return [_wilson_hilferty(shape, each) for each in probabilities]
    top = math.log(shape + 12 * math.sqrt(shape) + 40)
    bottom = max(-60.0, math.log(shape) - 12 / math.sqrt(shape) - 4)
    at = np.linspace(bottom, top, 4000)
    density = np.exp(shape * at - np.exp(at) - math.lgamma(shape + 1) + math.log(shape))
    steps = (density[1:] + density[:-1]) / 2 * np.diff(at)
    below = math.exp(shape * bottom - math.lgamma(shape + 1))
    total = np.concatenate([[0.0], np.cumsum(steps)]) + below
    total /= total[-1]
    return [float(np.exp(np.interp(each, total, at)) / shape) for each in probabilities]


def _wilson_hilferty(shape: float, probability: float) -> float:
    z = NormalDist().inv_cdf(probability)
    return float((1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3)
