"""Back-test with a rolling origin: forecasts from many points of a trace, scored by what followed.

At each origin a method gets only the history that `Counts` would hold then. Only models with an
arrival before the origin are scored. Windows are whole minutes, as the counts of traces are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from autoscaler.forecasting.counts import CountsParams
from autoscaler.forecasting.forecasts import Fit, fit
from autoscaler.forecasting.history import (
    NEVER,
    BadHorizon,
    Booleans,
    Floats,
    Forecast,
    ForecastHorizon,
    History,
    Integers,
)
from autoscaler.forecasting.patterns import ArrivalPattern
from research.forecasting.methods import Method


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


_KEPT: Final = CountsParams()


@dataclass(frozen=True, slots=True)
class BacktestParams:
    """The minutes that are origins, and the number of origins between fits."""

    first_minute: int
    last_minute: int
    """Exclusive; windows may end after it."""
    every_min: int = 17
    """Coprime to an hour, so that origins fall on all minutes of the hour."""
    refit_every: int = 4
    """Number of origins from one fit to the next."""

    def __post_init__(self) -> None:
        if not 0 < self.first_minute < self.last_minute:
            raise BadHorizon(
                "first_minute must be positive and before last_minute, "
                f"were {self.first_minute} to {self.last_minute}"
            )
        if self.every_min < 1 or self.refit_every < 1:
            raise BadHorizon(
                "every_min and refit_every must be positive, "
                f"were {self.every_min} and {self.refit_every}"
            )


@dataclass(slots=True)
class Backtest:
    """Sums of scores by method and by the model's pattern at the origin."""

    origins: int = 0
    tallies: dict[tuple[str, ArrivalPattern], ForecastTally] = field(default_factory=dict)

    def total(
        self, method: str, patterns: Sequence[ArrivalPattern] = tuple(ArrivalPattern)
    ) -> ForecastTally | None:
        """The sum over patterns; None if none of them occurred."""
        total: ForecastTally | None = None
        for pattern in patterns:
            found = self.tallies.get((method, pattern))
            if found is not None:
                total = found if total is None else total + found
        return total


def history_at(counts: Integers, minute: int) -> History:
    """The history that `Counts` would hold at the start of a minute."""
    past = counts[:, :minute]
    models = past.shape[0]
    spans = past.shape[1] // 10
    whole = past[:, : spans * 10].reshape(models, spans, 10).sum(axis=2)
    active = np.full((models, _KEPT.active_minutes), NEVER, dtype=np.int64)
    since = np.full(models, minute, dtype=np.int64)
    for row in range(models):
        found = np.flatnonzero(past[row])
        if found.size:
            since[row] = found[0]
            last = found[-_KEPT.active_minutes :]
            active[row, active.shape[1] - last.size :] = last
    return History(
        origin_s=minute * 60.0,
        minutes=_last(past, _KEPT.minutes),
        ten_minutes=_last(whole, _KEPT.ten_minutes),
        active_minutes=active,
        since_minute=since,
        recent=past[:, -1].astype(np.float64),
    )


def backtest(
    counts: Integers,
    methods: Mapping[str, Method],
    horizon: ForecastHorizon,
    params: BacktestParams,
    progress: Callable[[int, int], None] | None = None,
) -> Backtest:
    """Forecast from each origin with each method. `counts`: (models, minutes)."""
    _check(counts, horizon)
    ends = [int(each // 60) for each in horizon.windows_s]
    last = min(params.last_minute, counts.shape[1] - max(ends) + 1)
    origins = range(params.first_minute, last, params.every_min)
    result, fitted = Backtest(), None
    for at, minute in enumerate(origins):
        history = history_at(counts, minute)
        if fitted is None or at % params.refit_every == 0:
            fitted = fit(history)
        observed = np.stack([counts[:, minute : minute + end].sum(axis=1) for end in ends], axis=1)
        _score(result, history, fitted, methods, horizon, observed.astype(np.float64))
        if progress:
            progress(at + 1, len(origins))
    return result


def _score(
    result: Backtest,
    history: History,
    fitted: Fit,
    methods: Mapping[str, Method],
    horizon: ForecastHorizon,
    observed: Floats,
) -> None:
    is_known = history.active_minutes[:, -1] != NEVER
    result.origins += 1
    for name, method in methods.items():
        forecast = method(history, fitted, horizon)
        for pattern in ArrivalPattern:
            rows = is_known & (fitted.patterns.pattern == pattern)
            if rows.any():
                each = tally(forecast, observed, horizon.probabilities, rows)
                former = result.tallies.get((name, pattern))
                result.tallies[name, pattern] = each if former is None else former + each


def _check(counts: Integers, horizon: ForecastHorizon) -> None:
    if any(each % 60 for each in horizon.windows_s):
        raise BadHorizon(
            f"windows of a back-test must be whole minutes, were {horizon.windows_s} s"
        )
    if counts.ndim != 2 or not counts.size:
        raise BadHorizon(f"counts must have the shape (models, minutes), had {counts.shape}")


def _last(counts: Integers, bins: int) -> Integers:
    """The last bins, padded with zeros in front."""
    kept = counts[:, -bins:]
    return np.pad(kept, ((0, 0), (bins - kept.shape[1], 0)))
