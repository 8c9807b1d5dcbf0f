"""The slope of a series over time by ordinary least squares, with its confidence interval."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

_QUANTILE: Final = 1.96
"""Of the normal distribution, for 95 %: series have 50 points or more."""
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Trend:
    """Mean, and change per hour with the bounds of its 95 % confidence interval."""

    mean: float
    per_hour: float
    low: float
    high: float

    def grows(self, share: float, floor: float) -> bool:
        """Whether it certainly grows by more than a share of its mean, and `floor`, per hour."""
        return self.low > max(share * self.mean, floor)

    def __str__(self) -> str:
        return f"{self.mean:,.1f} | {self.per_hour:+,.1f} | {self.low:+,.1f} to {self.high:+,.1f}"


def without(values: Sequence[float], cause: Sequence[float]) -> list[float]:
    """The values less what a line through them over `cause` explains, around their mean.

    The trend of one series over times, both without the same cause, is their slope in a regression
    over time and that cause (Frisch and Waugh 1933).
    """
    mean_cause = fmean(cause)
    spread = sum((each - mean_cause) ** 2 for each in cause)
    if not spread:
        return list(values)
    products = ((c - mean_cause) * v for c, v in zip(cause, values, strict=True))
    slope = sum(products) / spread
    return [v - slope * (c - mean_cause) for c, v in zip(cause, values, strict=True)]


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """The trend of at least three values.

    The residuals of such series depend on each other, so the interval takes their number as the
    number of times at which they change sign, if that is smaller.
    """
    count, mean_time, mean = len(values), fmean(times_s), fmean(values)
    spread = sum((each - mean_time) ** 2 for each in times_s)
    slope = sum((t - mean_time) * v for t, v in zip(times_s, values, strict=True)) / spread
    residuals = [v - mean - slope * (t - mean_time) for t, v in zip(times_s, values, strict=True)]
    runs = 1 + sum(a * b < 0 for a, b in itertools.pairwise(residuals))
    independent = max(3, min(count, 2 * runs))
    variance = sum(each * each for each in residuals) / (count - 2) * count / independent
    margin = _QUANTILE * (variance / spread) ** 0.5
    return Trend(mean, slope * HOUR_S, (slope - margin) * HOUR_S, (slope + margin) * HOUR_S)
