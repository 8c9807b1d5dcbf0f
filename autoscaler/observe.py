"""Reads the pool's arrivals from the registry, and forecasts in a thread of its own."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from autoscaler.forecast import Forecaster, ForecastSchedule, ImpossibleForecast
from autoscaler.forecasting.counts import Counts, ForecastInput, ObservedDemand
from autoscaler.forecasting.demand import Demand
from autoscaler.metrics import AutoscalerMetrics
from registry.domain.demand import ArrivalCount, CountWindow
from registry.domain.model import ModelName
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog

REREAD_S: Final = 30
"""How far back each read goes, for late reports of gateways."""
_DAY_S: Final = 86_400
_SECONDS_KEPT_S: Final = 300
logger = logging.getLogger(__name__)


class DemandReader:
    """Adds what it reads to the observed demand of one pool. Used by one task only."""

    def __init__(self, registry: Registry, observed: ObservedDemand) -> None:
        self._arrivals = ArrivalLog(registry)
        self._observed = observed
        self._added: dict[int, dict[ModelName, int]] = {}
        """Counts that were added already, by second and model, for the last seconds."""
        self._read_at_s: float | None = None

    async def read(self, now_s: float, models: Sequence[ModelName]) -> None:
        """Add new counts. Raises RegistryUnavailable, without any change."""
        if self._read_at_s is None or abs(now_s - self._read_at_s) > _SECONDS_KEPT_S:
            await self._read_all(now_s, models)
        else:
            since_s = min(now_s, self._read_at_s) - REREAD_S
            seconds = await self._arrivals.read(CountWindow.SECOND, since_s, now_s)
            self._observed.set_models(models, now_s)
            self._observed.add(self._not_added(seconds), length_s=1.0)
        self._read_at_s = now_s
        oldest_s = now_s - 2 * REREAD_S
        self._added = {at_s: added for at_s, added in self._added.items() if at_s >= oldest_s}

    async def _read_all(self, now_s: float, models: Sequence[ModelName]) -> None:
        """Read two weeks: seconds of the last minutes, minutes of two days, ten minutes before."""
        seconds_from_s = (now_s - _SECONDS_KEPT_S) // 60 * 60
        minutes_from_s = (now_s - 2 * _DAY_S) // 600 * 600 + 600
        ten_minutes = await self._arrivals.read(
            CountWindow.TEN_MINUTES, now_s - 14 * _DAY_S, minutes_from_s - 600
        )
        minutes = await self._arrivals.read(CountWindow.MINUTE, minutes_from_s, seconds_from_s - 60)
        seconds = await self._arrivals.read(CountWindow.SECOND, seconds_from_s, now_s)
        self._observed.start_over(Counts())
        self._observed.set_models(models, now_s)
        for window, length_s in ((ten_minutes, 600.0), (minutes, 60.0)):
            counts = [(each.model, float(each.start_s), each.count) for each in window]
            self._observed.add(counts, length_s=length_s, is_new=False)
        self._added = {}
        self._observed.add(self._not_added(seconds), length_s=1.0, is_new=False)

    def _not_added(self, seconds: Sequence[ArrivalCount]) -> list[tuple[ModelName, float, int]]:
        """The counts that earlier reads of these seconds did not return."""
        new = []
        for item in seconds:
            added = self._added.setdefault(item.start_s, {})
            count = item.count - added.get(item.model, 0)
            if count > 0:
                added[item.model] = item.count
                new.append((item.model, float(item.start_s), count))
        return new


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
