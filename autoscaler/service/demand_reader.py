"""Arrival counts of a pool: read from the registry, and copied as input of forecasts.

A new autoscaler reads back all counts; a running one reads the last seconds at each tick and adds
what is new, because gateways report up to a second late.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.counts import Counts
from autoscaler.service.forecaster import ForecastInput
from registry.domain.demand import CountWindow
from registry.redis.arrivals import ArrivalLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.forecasting.history import Integers
    from registry.domain.demand import ArrivalCount
    from registry.domain.model import ModelName
    from registry.redis.client import Registry

REREAD_S: Final = 30
"""How far back each read goes, for late reports of gateways."""
_DAY_S: Final = 86_400
_SECONDS_KEPT_S: Final = 300


class DemandReader:
    """The arrival counts of one pool. One owner."""

    def __init__(self, registry: Registry, time_scale: float = 1.0) -> None:
        """Counts are kept on a clock that runs `time_scale` times as fast as the registry's."""
        self._time_scale = time_scale
        self._arrivals = ArrivalLog(registry)
        self._counts: Counts | None = None
        self._added: dict[int, dict[ModelName, int]] = {}
        """By second, of the last seconds: what is already in `_counts`."""
        self._read_at_s = 0.0
        self.arrived: defaultdict[ModelName, int] = defaultdict(int)
        """Requests since `clear_arrived`."""
        self.changed: set[str] = set()
        """Models with arrivals since their last `forecast_input`."""
        self.last_arrival_s: dict[ModelName, float] = {}

    def scaled_s(self, time_s: float) -> float:
        """A time of the registry on the clock of the counts."""
        return self._time_scale * time_s

    def clear_arrived(self) -> None:
        """Call after each plan."""
        self.arrived.clear()

    async def read(self, now_s: float, models: Sequence[ModelName]) -> None:
        """Add new counts. Raises RegistryUnavailable, and then nothing has changed."""
        if self._counts is None or abs(now_s - self._read_at_s) > _SECONDS_KEPT_S:
            await self._read_all(now_s, models)
        else:
            self._set_models(self._counts, models, now_s)
            since_s = min(now_s, self._read_at_s) - REREAD_S
            seconds = await self._arrivals.read(CountWindow.SECOND, since_s, now_s)
            self._add_new(self._counts, seconds)
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
        counts = Counts()
        self._added = {}
        self._set_models(counts, models, now_s)
        for window in (ten_minutes, minutes):
            self._add(counts, [(each.model, each.start_s, each.count) for each in window])
        self._add_new(counts, seconds)
        for window, length_s in ((ten_minutes, 600.0), (minutes, 60.0)):
            for item in window:
                self._set_last_arrival(item.model, item.start_s + length_s)
        self._counts = counts

    def _set_models(self, counts: Counts, models: Sequence[ModelName], now_s: float) -> None:
        """Advance the clock, and keep exactly these models."""
        counts.advance(self.scaled_s(now_s))
        names = {str(name) for name in models}
        for name in [name for name in counts.names if name not in names]:
            counts.remove_model(name)
        for name in names:
            counts.add_model(name)
        self.last_arrival_s = {
            name: min(at_s, now_s)
            for name, at_s in self.last_arrival_s.items()
            if str(name) in names
        }

    def _add_new(self, counts: Counts, seconds: Sequence[ArrivalCount]) -> None:
        """Add what earlier reads of these seconds did not have."""
        new = []
        for item in seconds:
            added = self._added.setdefault(item.start_s, {})
            count = item.count - added.get(item.model, 0)
            if count > 0:
                added[item.model] = item.count
                new.append((item.model, item.start_s, count))
                self.arrived[item.model] += count
                self.changed.add(str(item.model))
                self._set_last_arrival(item.model, item.start_s + 1.0)
        self._add(counts, new)

    def _set_last_arrival(self, model: ModelName, end_s: float) -> None:
        """`end_s`: the end of a window with arrivals; windows may come in any order."""
        self.last_arrival_s[model] = max(self.last_arrival_s.get(model, 0.0), end_s)

    def _add(self, counts: Counts, items: Sequence[tuple[ModelName, float, int]]) -> None:
        """Add (model, start, count) of models that still exist."""
        known = set(counts.names)
        found = [(str(model), at_s, count) for model, at_s, count in items if str(model) in known]
        counts.add(
            [model for model, _, _ in found],
            [self.scaled_s(at_s) for _, at_s, _ in found],
            [count for _, _, count in found],
        )

    def forecast_input(
        self, now_s: float, models: tuple[str, ...], rows: Integers | None = None
    ) -> ForecastInput | None:
        """A copy of the counts of these models, in their order; None before the first read.

        With `rows` the history is of those models only. They count as unchanged from then on.
        """
        if self._counts is None or not models:
            return None
        try:
            indices = self._counts.rows_of(models)
        except KeyError:
            return None  # a model was added after the last read
        chosen = indices if rows is None else indices[rows]
        history = self._counts.history(self.scaled_s(now_s), chosen)
        self.changed -= set(models if rows is None else (models[row] for row in rows.tolist()))
        seconds = self._counts.recent_seconds(indices)
        if self._time_scale > 1:  # counts per second of the registry are too coarse for scaled ones
            seconds = np.zeros_like(seconds)
        return ForecastInput(models, rows, history, seconds)
