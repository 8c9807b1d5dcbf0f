"""Runs forecasts in a thread, one at a time, so that planning does not wait for them.

With ten thousand models a forecast takes seconds; queued requests must not wait that long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from autoscaler.tick.forecast_schedule import ForecastSchedule
from autoscaler.tick.forecaster import ImpossibleForecast

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import Demand
    from autoscaler.service.metrics import AutoscalerMetrics
    from autoscaler.tick.forecaster import Forecaster, ForecastInput
    from autoscaler.tick.observed_demand import ObservedDemand

logger = logging.getLogger(__name__)


class BackgroundForecast(ForecastSchedule):
    """The latest forecast of a pool and the one in progress. Owned by the event loop."""

    def __init__(
        self,
        observed: ObservedDemand,
        forecaster: Forecaster,
        metrics: AutoscalerMetrics,
        *,
        interval_s: float,
    ) -> None:
        super().__init__(observed, forecaster, interval_s=interval_s)
        self._metrics = metrics
        self._running: asyncio.Future[tuple[tuple[str, ...], Demand | None, float]] | None = None
        """Its result: the models, their demand (None if the forecast failed), and its seconds."""

    def update(self, models: tuple[str, ...], now_s: float) -> None:
        """Store the result of a finished forecast; start the next forecast when it is due."""
        if self._running is not None:
            if not self._running.done():
                return
            finished, self._running = self._running, None
            forecast_models, demand, took_s = finished.result()
            self._metrics.forecast_seconds.observe(took_s)
            self.take(forecast_models, demand, took_s=took_s)
        inputs = self.next_input(models, now_s)
        if inputs is not None:
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(None, self._forecast, inputs)

    async def wait(self) -> None:
        """Return when the forecast in progress is finished."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def _forecast(self, inputs: ForecastInput) -> tuple[tuple[str, ...], Demand | None, float]:
        """Runs in a thread."""
        started_s = time.perf_counter()
        demand: Demand | None = None
        try:
            demand = self.forecaster.forecast(inputs)
        except ImpossibleForecast:
            self._metrics.failures.labels("absurd-forecast").inc()
            logger.warning("the forecast has impossible numbers; plans are made without it")
        except (ValueError, ArithmeticError, LookupError):
            self._metrics.failures.labels("forecast").inc()
            logger.exception("the forecast failed; plans are made without it")
        return inputs.models, demand, time.perf_counter() - started_s
