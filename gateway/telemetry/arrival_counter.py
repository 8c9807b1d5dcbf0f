"""Reports arrivals and queued requests by model to the registry, in a background task.

The first queued request is reported at once, since the autoscaler starts pods and copies for queued
requests, and tells other scalers.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from registry.domain.demand import QueueStats
from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog

REPORT_INTERVAL_S: Final = 1.0
POLL_INTERVAL_S: Final = 0.2
"""Of checks whether a report is due."""
MAX_UNREPORTED_SECONDS: Final = 300
"""After a registry outage, counts of its last seconds are reported; earlier ones are dropped."""

_Counts = dict["ModelName", int]


@dataclass(eq=False)
class ArrivalCounter:
    """One gateway's unreported counts. Owned by the event loop."""

    registry: Registry
    gateway: str
    queue_stats: Callable[[], Mapping[ModelName, QueueStats]]
    queued_total: Callable[[], int]
    queued: asyncio.Event
    """Set when a request is queued while no others are."""

    def __post_init__(self) -> None:
        self._log = ArrivalLog(self.registry)
        self._by_second: dict[int, _Counts] = {}
        self._report: dict[int, _Counts] = {}
        """Counts in flight. Without a reply they are sent again under the same sequence number,
        since the registry may have counted them."""
        self._sequence = 0
        self._reported_queued = False
        self._reported_at_s = 0.0

    def count(self, model: ModelName) -> None:
        second = int(time.monotonic())
        counts = self._by_second.get(second)
        if counts is None:
            counts = self._by_second[second] = defaultdict(int)
            if len(self._by_second) > MAX_UNREPORTED_SECONDS:
                del self._by_second[min(self._by_second)]
        counts[model] += 1

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            if self._reported_queued:
                await asyncio.sleep(POLL_INTERVAL_S)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL_S):
                        await self.queued.wait()
            self.queued.clear()
            if self._is_due():
                await self._send_report()

    def _is_due(self) -> bool:
        has_queued = self.queued_total() > 0
        if has_queued and not self._reported_queued:
            return True
        has_changes = has_queued or self._reported_queued or self._by_second or self._report
        return bool(has_changes) and time.monotonic() - self._reported_at_s >= REPORT_INTERVAL_S

    async def _send_report(self) -> None:
        if not self._report:
            self._report, self._by_second = self._by_second, {}
            self._sequence += 1
        now = int(time.monotonic())
        queue_stats = self.queue_stats()
        self._reported_at_s = time.monotonic()
        counts = [
            (model, number, now - second)
            for second, by_model in self._report.items()
            for model, number in by_model.items()
        ]
        try:
            await self._log.report(self.gateway, self._sequence, counts, queue_stats)
        except RegistryUnavailable:
            return  # sent again with the next report
        self._report = {}
        self._reported_queued = bool(queue_stats)
