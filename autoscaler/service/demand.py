"""What models are asked for: counts read from the registry, and copies of them for forecasts.

A new autoscaler reads back what gateways have counted; a running one reads the last seconds, and
adds what is new in them, since gateways tell a second late.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.counts import Counts
from autoscaler.service.forecaster import Past
from registry.domain.demand import CountWindow
from registry.redis.arrivals import ArrivalLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.forecasting.history import Integers
    from registry.domain.demand import ArrivalCount
    from registry.domain.model import ModelName
    from registry.redis.client import Registry

logger = logging.getLogger(__name__)

RECENT_S: Final = 30
"""Seconds that are read again, for what gateways tell late."""
_DAY_S: Final = 86_400
_SECONDS_KEPT_S: Final = 300


class DemandReader:
    """The counts of one pool, and what is expected. One owner."""

    def __init__(self, registry: Registry, pace: float = 1.0) -> None:
        """Counts are kept on a clock that runs `pace` times as fast as the registry's."""
        self._pace = pace
        self._arrivals = ArrivalLog(registry)
        self._counts: Counts | None = None
        self._taken: dict[int, dict[ModelName, int]] = {}
        """What was already added of the last seconds."""
        self._read_at_s = 0.0
        self.arrived: defaultdict[ModelName, int] = defaultdict(int)
        """Requests since `forget_arrived`."""
        self.changed: set[str] = set()
        """Models asked for since their `past` was taken."""
        self.last_arrival_s: dict[ModelName, float] = {}

    def forget_arrived(self) -> None:
        """They were planned for."""
        self.arrived.clear()

    async def read(self, now_s: float, models: Sequence[ModelName]) -> None:
        """Take in what was counted; raises RegistryUnavailable, and then nothing has changed."""
        if self._counts is None or abs(now_s - self._read_at_s) > _SECONDS_KEPT_S:
            await self._read_back(now_s, models)
        else:
            self._declare(self._counts, models, now_s)
            since_s = min(now_s, self._read_at_s) - RECENT_S
            self._take(self._counts, await self._arrivals.read(CountWindow.SECOND, since_s, now_s))
        self._read_at_s = now_s
        oldest_s = now_s - 2 * RECENT_S
        self._taken = {at_s: taken for at_s, taken in self._taken.items() if at_s >= oldest_s}

    async def _read_back(self, now_s: float, models: Sequence[ModelName]) -> None:
        """Read all there is: seconds of the last minutes, minutes of two days, tens before."""
        seconds_from_s = (now_s - _SECONDS_KEPT_S) // 60 * 60
        minutes_from_s = (now_s - 2 * _DAY_S) // 600 * 600 + 600
        tens = await self._arrivals.read(
            CountWindow.TEN_MINUTES, now_s - 14 * _DAY_S, minutes_from_s - 600
        )
        minutes = await self._arrivals.read(CountWindow.MINUTE, minutes_from_s, seconds_from_s - 60)
        seconds = await self._arrivals.read(CountWindow.SECOND, seconds_from_s, now_s)
        counts = Counts()
        self._taken = {}
        self._declare(counts, models, now_s)
        for each in (tens, minutes):
            self._add(counts, each)
        self._take(counts, seconds)
        for item in (*tens, *minutes):
            if item.model not in self.last_arrival_s:
                self.last_arrival_s[item.model] = item.start_s
        self._counts = counts

    def _declare(self, counts: Counts, models: Sequence[ModelName], now_s: float) -> None:
        counts.advance(self._pace * now_s)
        names = {str(name) for name in models}
        for name in [name for name in counts.names if name not in names]:
            counts.forget(name)
        for name in names:
            counts.declare(name)
        self.last_arrival_s = {
            name: min(at_s, now_s)
            for name, at_s in self.last_arrival_s.items()
            if str(name) in names
        }

    def _take(self, counts: Counts, seconds: Sequence[ArrivalCount]) -> None:
        fresh = []
        for item in seconds:
            taken = self._taken.setdefault(item.start_s, {})
            number = item.count - taken.get(item.model, 0)
            if number > 0:
                taken[item.model] = item.count
                fresh.append((str(item.model), self._pace * item.start_s, number))
                self.arrived[item.model] += number
                self.changed.add(str(item.model))
                last_s = self.last_arrival_s.get(item.model, 0.0)
                self.last_arrival_s[item.model] = max(last_s, item.start_s + 1.0)
        known = set(counts.names)
        fresh = [each for each in fresh if each[0] in known]
        if fresh:
            names, times_s, numbers = zip(*fresh, strict=True)
            counts.add(names, times_s, numbers)

    def past(
        self, now_s: float, models: tuple[str, ...], rows: Integers | None = None
    ) -> Past | None:
        """A copy of what is known of these models, in their order; None before anything was.

        With `rows` the history is of those models only; they count as unchanged from then on.
        """
        if self._counts is None or not models:
            return None
        try:
            places = self._counts.rows_of(models)
        except KeyError:
            return None  # declared since the last read
        chosen = places if rows is None else places[rows]
        history = self._counts.history(self._pace * now_s, chosen)
        self.changed -= set(models if rows is None else (models[row] for row in rows.tolist()))
        seconds = self._counts.recent_seconds(places)
        if self._pace > 1:  # gateways count seconds: nothing finer than `pace` of them is known
            seconds = np.zeros_like(seconds)
        return Past(models, rows, history, seconds)

    def _add(self, counts: Counts, items: Sequence[ArrivalCount]) -> None:
        known = set(counts.names)
        items = [each for each in items if str(each.model) in known]
        counts.add(
            [str(each.model) for each in items],
            [self._pace * each.start_s for each in items],
            [each.count for each in items],
        )
