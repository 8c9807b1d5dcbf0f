"""Counts the requests of each model and tells the registry, once a second and beside all requests.

What waits is told as soon as somebody waits, since pods and copies are started for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from registry.errors import RegistryUnavailable
from registry.redis.arrivals import ArrivalLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from registry.domain.demand import QueueStats
    from registry.domain.model import ModelName
    from registry.redis.client import Registry

TELL_S: Final = 1.0
LOOK_S: Final = 0.2
"""Between two looks at whether anybody waits."""
MOST_SECONDS: Final = 300
"""Of an outage, the last seconds are told afterwards; what came before is forgotten."""

_Counts = dict["ModelName", int]


class ArrivalCounter:
    """One gateway's counts that the registry has not heard of yet. Owned by the event loop."""

    def __init__(
        self,
        registry: Registry,
        gateway: str,
        waiting: Callable[[], Mapping[ModelName, QueueStats]],
        waiting_total: Callable[[], int],
    ) -> None:
        """`waiting_total` is asked at every look, `waiting` only for a report."""
        self._arrivals = ArrivalLog(registry)
        self._gateway = gateway
        self._waiting = waiting
        self._waiting_total = waiting_total
        self._by_second: dict[int, _Counts] = {}
        self._report: dict[int, _Counts] = {}
        """On its way, or lost: it goes again under its number, since it may have been counted."""
        self._sequence = 0
        self._told_waiting = False
        self._told_at_s = 0.0

    def count(self, model: ModelName) -> None:
        """A request of a declared model came."""
        second = int(time.monotonic())
        counts = self._by_second.get(second)
        if counts is None:
            counts = self._by_second[second] = defaultdict(int)
            if len(self._by_second) > MOST_SECONDS:
                del self._by_second[min(self._by_second)]
        counts[model] += 1

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._is_due():
                await self._tell()

    def _is_due(self) -> bool:
        has_waiting = self._waiting_total() > 0
        if has_waiting and not self._told_waiting:
            return True
        has_news = has_waiting or self._told_waiting or self._by_second or self._report
        return bool(has_news) and time.monotonic() - self._told_at_s >= TELL_S

    async def _tell(self) -> None:
        if not self._report:
            self._report, self._by_second = self._by_second, {}
            self._sequence += 1
        now = int(time.monotonic())
        waiting = self._waiting()
        self._told_at_s = time.monotonic()
        try:
            await self._arrivals.report(
                self._gateway,
                self._sequence,
                [
                    (model, number, now - second)
                    for second, counts in self._report.items()
                    for model, number in counts.items()
                ],
                waiting,
            )
        except RegistryUnavailable:
            return  # they go again with the next report
        self._report = {}
        self._told_waiting = bool(waiting)
