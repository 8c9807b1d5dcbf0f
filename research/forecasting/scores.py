"""Scores of forecasts: errors, calibration and P(arrival), summed over many forecasts."""

from dataclasses import dataclass

import numpy as np

from autoscaler.forecasting.history import Booleans, Floats, Forecast


@dataclass(frozen=True, slots=True)
class ForecastTally:
    """Sums over forecasts; arrays by window, or by window and probability."""

    count: float
    arrivals: Floats
    absolute: Floats
    pinball: Floats
    at_or_below: Floats
    below: Floats
    brier: Floats
    p_arrival: Floats
    arrived: Floats

    def __add__(self, other: "ForecastTally") -> "ForecastTally":
        return ForecastTally(
            *(getattr(self, name) + getattr(other, name) for name in self.__slots__)
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over the forecasts of one window."""

    forecasts: int
    arrivals: float
    """Mean arrivals in the window."""
    mae: float
    """Mean absolute error of the median, or of the lowest quantile above it."""
    pinball: tuple[float, ...]
    """Quantile loss by probability (Koenker and Bassett 1978)."""
    at_or_below: tuple[float, ...]
    """By probability: share of outcomes at or below the quantile; at least the probability."""
    below: tuple[float, ...]
    """By probability: share of outcomes below the quantile; at most the probability."""
    miscalibration: tuple[float, ...]
    """By probability: distance of the probability from [below, at_or_below]; 0 if calibrated."""
    brier: float
    """Brier score of P(arrival) (Brier 1950)."""
    p_arrival: float
    """Mean of the forecasts of P(arrival), to compare with `arrived`."""
    arrived: float
    """Share of the windows with an arrival."""


def tally(
    forecast: Forecast, arrivals: Floats, probabilities: tuple[float, ...], rows: Booleans
) -> ForecastTally:
    """Score the forecasts of some rows. `arrivals`: (models, windows)."""
    observed, quantiles = arrivals[rows], forecast.quantiles[rows]
    error = observed[..., None] - quantiles
    levels = np.asarray(probabilities)
    median = int(np.searchsorted(levels, 0.5).clip(0, levels.size - 1))
    some = (observed > 0).astype(np.float64)
    p_arrival = forecast.p_arrival[rows]
    return ForecastTally(
        count=float(rows.sum()),
        arrivals=observed.sum(axis=0),
        absolute=np.abs(error[..., median]).sum(axis=0),
        pinball=np.maximum(levels * error, (levels - 1) * error).sum(axis=0),
        at_or_below=(error <= 0).sum(axis=0).astype(np.float64),
        below=(error < 0).sum(axis=0).astype(np.float64),
        brier=((p_arrival - some) ** 2).sum(axis=0),
        p_arrival=p_arrival.sum(axis=0),
        arrived=some.sum(axis=0),
    )


def scores(total: ForecastTally, window: int, probabilities: tuple[float, ...]) -> Scores:
    """Means for one window; `total.count` must be positive."""
    count = total.count
    reached, below = total.at_or_below[window] / count, total.below[window] / count
    levels = np.asarray(probabilities)
    off = np.maximum(np.maximum(below - levels, levels - reached), 0.0)
    return Scores(
        forecasts=int(count),
        arrivals=float(total.arrivals[window] / count),
        mae=float(total.absolute[window] / count),
        pinball=_floats(total.pinball[window] / count),
        at_or_below=_floats(reached),
        below=_floats(below),
        miscalibration=_floats(off),
        brier=float(total.brier[window] / count),
        p_arrival=float(total.p_arrival[window] / count),
        arrived=float(total.arrived[window] / count),
    )


def _floats(values: Floats) -> tuple[float, ...]:
    return tuple(float(each) for each in values)
