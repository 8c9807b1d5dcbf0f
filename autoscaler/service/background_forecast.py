"""Runs forecasts in a thread, one at a time, so that planning does not wait for them.

With ten thousand models a forecast takes seconds; queued requests must not wait that long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.service.forecaster import is_sound

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import Demand
    from autoscaler.service.demand_reader import DemandReader
    from autoscaler.service.forecaster import DemandForecaster, ForecastInput
    from autoscaler.service.metrics import AutoscalerMetrics

logger = logging.getLogger(__name__)

_MIN_PAUSE_RATIO: Final = 5.0
"""Pause after a forecast over the time it took: forecasts take at most a fifth of a core."""


@dataclass(frozen=True, slots=True)
class ForecastResult:
    """A forecast of these models, None if it failed, and the time it took."""

    models: tuple[str, ...]
    demand: Demand | None
    took_s: float


class BackgroundForecast:
    """The latest forecast of a pool and the one in progress. Owned by the event loop."""

    def __init__(
        self,
        reader: DemandReader,
        forecaster: DemandForecaster,
        metrics: AutoscalerMetrics,
        *,
        interval_s: float,
    ) -> None:
        self._reader = reader
        self._forecaster = forecaster
        self._metrics = metrics
        self._interval_s = self._pause_s = interval_s
        self._demand: Demand | None = None
        self._models: tuple[str, ...] = ()
        self._running: asyncio.Future[ForecastResult] | None = None
        self._started_s = 0.0

    def demand(self, models: tuple[str, ...]) -> Demand | None:
        """The latest forecast; None if there is none of exactly these models."""
        return self._demand if self._models == models else None

    def update(self, models: tuple[str, ...], now_s: float) -> None:
        """Take over a finished forecast; start the next one when it is due."""
        if self._running is not None:
            if not self._running.done():
                return
            self._take(self._running.result())
            self._running = None
        if models == self._models and 0 <= now_s - self._started_s < self._pause_s:
            return
        self._started_s = now_s
        changed, scaled_s = self._reader.changed, self._reader.scaled_s(now_s)
        rows = self._forecaster.due(models, changed, scaled_s)
        inputs = self._reader.forecast_input(now_s, models, rows)
        if inputs is None:
            self._demand, self._models = None, models
            return
        loop = asyncio.get_running_loop()
        self._running = loop.run_in_executor(None, self._forecast, inputs)

    async def wait(self) -> None:
        """Return when the forecast in progress is finished."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def _forecast(self, inputs: ForecastInput) -> ForecastResult:
        """Runs in a thread."""
        started_s = time.perf_counter()
        demand: Demand | None = None
        try:
            demand = self._forecaster.forecast(inputs)
        except (ValueError, ArithmeticError, LookupError):
            self._metrics.failures.labels("forecast").inc()
            logger.exception("the forecast failed; plans are made without it")
        if demand is not None and not is_sound(demand):
            self._metrics.failures.labels("absurd-forecast").inc()
            logger.warning("the forecast has impossible numbers; plans are made without it")
            demand = None
        return ForecastResult(inputs.models, demand, time.perf_counter() - started_s)

    def _take(self, result: ForecastResult) -> None:
        self._metrics.forecast_seconds.observe(result.took_s)
        self._demand, self._models = result.demand, result.models
        self._pause_s = max(self._interval_s, _MIN_PAUSE_RATIO * result.took_s)
