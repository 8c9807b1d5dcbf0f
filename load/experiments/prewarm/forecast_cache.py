"""Forecasts of a whole trace, made once and used by every run: arrivals do not depend on policies.

They are those that the live autoscaler would make at each tick, from the same counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.counts import Counts, CountsParams
from autoscaler.forecasting.history import Forecast, ForecastHorizon
from autoscaler.planning.demand_forecast import FittedModel, fit_model, forecast_demand
from autoscaler.planning.pool_view import Demand
from load.experiments.prewarm.scenario import TICK_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autoscaler.forecasting.history import Floats
    from load.experiments.prewarm.scenario import ReplayWindow

QUESTION: Final = ForecastHorizon(windows_s=(60.0, 300.0, 600.0, 3600.0), probabilities=(0.5, 0.9))
_NO_PAST: Final = CountsParams(seconds=1, minutes=1, ten_minutes=1, active_minutes=1)
_LEARN_EVERY_S: Final = 3600.0
"""Rarer than live, for the time it takes."""


class ForecastCache:
    """Forecasts by tick; a `load.simulator.autoscaling.Forecaster`."""

    def __init__(
        self, span: ReplayWindow, arrays: dict[str, Floats], *, with_history: bool
    ) -> None:
        """Without history the past of every demand is empty, for policies that do not read it."""
        self._epoch_s = span.epoch_s
        self._arrays = arrays
        self._with_history = with_history

    def __call__(self, counts: Counts, models: tuple[str, ...], now_s: float) -> Demand | None:
        """The forecast of a tick, and the history as it is."""
        tick = round((now_s - self._epoch_s) / TICK_S)
        known = counts if self._with_history else Counts(_NO_PAST)
        history = known.history_of(models, now_s)
        at = {name: array[tick].astype(np.float64) for name, array in self._arrays.items()}
        soon = at.pop("p_minute")
        return Demand(history, QUESTION, Forecast(**at), soon)


def record(
    span: ReplayWindow, models: list[str], path: Path, tell: Callable[[int, int], None]
) -> None:
    """Forecast at every tick of a span, and write it all to a file."""
    names = tuple(f"default/{name}" for name in models)
    counts, arrivals = span.counts_before(), _by_tick(span)
    learnt: FittedModel | None = None
    arrays: dict[str, Floats] = {}
    for tick in range(span.ticks + 1):
        now_s = span.epoch_s + tick * TICK_S
        counts.advance(now_s)
        if tick in arrivals:
            counts.add(*arrivals[tick])
        history = counts.history_of(names, now_s)
        learnt = fit_model(history, names, learnt, interval_s=_LEARN_EVERY_S)
        for name, found in _kept(forecast_demand(history, learnt, QUESTION)).items():
            if tick == 0:
                arrays[name] = np.zeros((span.ticks + 1, *found.shape), dtype=np.float32)
            arrays[name][tick] = found
        tell(tick, span.ticks)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are ours, none is an option


@lru_cache(maxsize=1)
def read(span: ReplayWindow, path: Path, *, with_history: bool) -> ForecastCache:
    """What `record` wrote."""
    with np.load(path) as arrays:
        return ForecastCache(span, dict(arrays), with_history=with_history)


def _kept(demand: Demand) -> dict[str, Floats]:
    """What a tape keeps of a tick: not the history, which is large and made again."""
    forecast = demand.forecast
    return {
        "mean": forecast.mean,
        "quantiles": forecast.quantiles,
        "p_arrival": forecast.p_arrival,
        "p_minute": demand.p_minute,
    }


def _by_tick(span: ReplayWindow) -> dict[int, tuple[list[str], list[float], list[int]]]:
    """Models, times and counts by the tick that sees them first."""
    found: dict[int, tuple[list[str], list[float], list[int]]] = {}
    for batch in span.trace():
        times_s, models = batch.column("at_s").to_pylist(), batch.column("model").to_pylist()
        for at_s, model in zip(times_s, models, strict=True):
            row = found.setdefault(int(at_s // TICK_S) + 1, ([], [], []))
            row[0].append(f"default/{model}")
            row[1].append(span.epoch_s + at_s)
            row[2].append(1)
    return found
