"""First step of a tick: the pool as it is now, in one view."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.policy import Limits, Observations, PoolView, copy_uses, read_pool
from registry.domain.demand import ArrivalCount, ArrivalHint, CountWindow
from registry.domain.model import ModelName
from registry.domain.records import WantedPods
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.client import Registry
from registry.redis.reports import ArrivalHints, ArrivalLog, read_copy_reports
from registry.redis.watch import ClusterWatch

REREAD_S: Final = 30
"""How far back each read goes, for late reports of gateways."""
_DAY_S: Final = 86_400
_SECONDS_KEPT_S: Final = 300


@dataclass(frozen=True, slots=True)
class Observed:
    """What a tick starts from."""

    now_s: float
    """On the registry's clock; that of the view may be faster."""
    view: PoolView
    """Without the demand, which is forecast next."""
    hints: Sequence[ArrivalHint]
    """Arrivals that schedulers of workflows announce."""
    wanted: WantedPods | None
    """The registry's record of the number of pods."""


class Observer:
    """Reads one pool, and counts its arrivals. Used by one task only."""

    def __init__(self, watch: ClusterWatch, log: AutoscalerLog, arrivals: ObservedDemand) -> None:
        self._watch = watch
        self._log = log
        self._arrivals = arrivals
        self._queues = ArrivalLog(watch.registry)
        self._hints = ArrivalHints(watch.registry)
        self._reader = DemandReader(watch.registry, arrivals)

    async def observe(
        self, now_s: float, *, limits: Limits | None, paused: Collection[str]
    ) -> Observed:
        """Raises RegistryUnavailable."""
        counting = asyncio.create_task(self._reader.read(now_s, sorted(self._watch.state.models)))
        try:
            ongoing, waiting, reports, hints, _ = await asyncio.gather(
                self._log.ongoing(),
                self._queues.queue_stats(),
                read_copy_reports(self._watch.registry),
                self._hints.read(),
                counting,
            )
        finally:  # where another read failed, it would add its counts in the middle of later ticks
            counting.cancel()
        state = self._watch.state
        seen = Observations(
            arrived=self._arrivals.take_arrived(),
            last_arrival_s=self._arrivals.last_arrival_s,
            waiting=waiting,
            uses=copy_uses(state, reports),
            ongoing=ongoing.actions,
            paused=paused,
            time_scale=self._arrivals.time_scale,
        )
        view = read_pool(state, now_s, seen, limits=limits)
        return Observed(now_s, view, hints, ongoing.wanted)


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
        self._observed.reset(Counts())
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
