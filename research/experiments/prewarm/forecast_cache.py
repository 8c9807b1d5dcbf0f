"""Forecasts of a whole trace, computed once for all runs: arrivals do not depend on policies.

The live autoscaler would make them at each tick from the same counts, except that it fits its model
more often.
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from autoscaler.forecasting.counts import ForecastInput
from autoscaler.forecasting.forecasts import Demand, FittedModel, fit_model, forecast_demand
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, Integers
from research.experiments.prewarm.scenario import TICK_S, ReplayWindow

HORIZON: Final = ForecastHorizon(windows_s=(60.0, 300.0, 600.0, 3600.0), probabilities=(0.5, 0.9))
_FIT_INTERVAL_S: Final = 3600.0
"""Longer than in the live autoscaler, to save time."""


class ForecastCache:
    """Forecasts by tick; a `Forecaster`."""

    def __init__(
        self, window: ReplayWindow, arrays: dict[str, Floats], *, with_history: bool
    ) -> None:
        """`with_history`: False for policies that do not read `Demand.history`."""
        self._epoch_s = window.epoch_s
        self._arrays = arrays
        self._with_history = with_history

    def due(
        self, models: tuple[str, ...], changed: Collection[str], now_s: float
    ) -> Integers | None:
        return None if self._with_history else np.empty(0, dtype=np.int64)

    def forecast(self, inputs: ForecastInput) -> Demand:
        """The forecast of a tick, with the history of the run."""
        tick = round((inputs.history.origin_s - self._epoch_s) / TICK_S)
        forecast = {name: array[tick].astype(np.float64) for name, array in self._arrays.items()}
        p_minute = forecast.pop("p_minute")
        history = inputs.history if self._with_history else None
        return Demand(history, HORIZON, Forecast(**forecast), p_minute)


def record(
    window: ReplayWindow, models: list[str], path: Path, on_tick: Callable[[int, int], None]
) -> None:
    """Forecast at every tick of a window, and write all forecasts to a file."""
    names = tuple(f"default/{name}" for name in models)
    counts, arrivals = window.counts_before(), _arrivals_by_tick(window)
    fitted: FittedModel | None = None
    arrays: dict[str, Floats] = {}
    for tick in range(window.ticks + 1):
        now_s = window.epoch_s + tick * TICK_S
        counts.advance(now_s)
        if tick in arrivals:
            counts.add(*arrivals[tick])
        history = counts.history_of(names, now_s)
        fitted = fit_model(history, names, fitted, interval_s=_FIT_INTERVAL_S)
        demand = forecast_demand(history, fitted, HORIZON)
        forecast = demand.forecast
        for name, found in {
            "mean": forecast.mean,
            "quantiles": forecast.quantiles,
            "p_arrival": forecast.p_arrival,
            "p_minute": demand.p_minute,
        }.items():
            if tick == 0:
                arrays[name] = np.zeros((window.ticks + 1, *found.shape), dtype=np.float32)
            arrays[name][tick] = found
        on_tick(tick, window.ticks)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # no array is named like an option


@lru_cache(maxsize=1)
def read(window: ReplayWindow, path: Path, *, with_history: bool) -> ForecastCache:
    """Forecasts written by `record`."""
    with np.load(path) as arrays:
        return ForecastCache(window, dict(arrays), with_history=with_history)


def _arrivals_by_tick(window: ReplayWindow) -> dict[int, tuple[list[str], list[float], list[int]]]:
    """Models, times and counts of arrivals, by the first tick after each arrival."""
    found: dict[int, tuple[list[str], list[float], list[int]]] = {}
    for batch in window.trace():
        times_s, models = batch.column("at_s").to_pylist(), batch.column("model").to_pylist()
        for at_s, model in zip(times_s, models, strict=True):
            names, at, counts = found.setdefault(int(at_s // TICK_S) + 1, ([], [], []))
            names.append(f"default/{model}")
            at.append(window.epoch_s + at_s)
            counts.append(1)
    return found
