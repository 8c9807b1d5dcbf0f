"""Arrivals per model and queue lengths: gateways report once a second, autoscalers read.

Counts per second are kept for ten minutes, per minute for two days, per ten minutes for two weeks.
Models that are not declared are not counted, which bounds the memory. Times are the registry's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.demand import WINDOW_S, ArrivalCount, QueueStats
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from registry.domain.demand import CountWindow
    from registry.redis.client import Registry


class ArrivalLog:
    """Writes and reads the counts of one pool. All methods raise RegistryUnavailable."""

    def __init__(self, registry: Registry) -> None:
        self._submit = registry.transactions.submit

    async def report(
        self,
        gateway: str,
        sequence: int,
        counts: Sequence[tuple[ModelName, int, int]],
        queued: Mapping[ModelName, QueueStats],
    ) -> None:
        """Add (model, count, seconds ago), and replace the gateway's queue lengths.

        A report whose reply was lost is sent again with the same `sequence` and counts once.
        """
        await self._submit(
            "arrivals",
            gateway,
            sequence,
            [[str(model), count, ago_s] for model, count, ago_s in counts],
            {
                str(model): [each.requests, each.starved, int(each.oldest_s * 1000)]
                for model, each in queued.items()
            },
        )

    async def read(self, window: CountWindow, first_s: float, last_s: float) -> list[ArrivalCount]:
        """Counts of all windows of one length between two times, both ends included."""
        length_s = WINDOW_S[window]
        first, last = int(first_s // length_s), int(last_s // length_s)
        counts: list[ArrivalCount] = []
        while first <= last:
            found, first = await self._submit("arrivals_in", window, first, last)
            counts += [
                ArrivalCount(ModelName.parse(name), int(start) * length_s, int(count))
                for start, pairs in found or ()
                for name, count in zip(pairs[::2], pairs[1::2], strict=True)
            ]
        return counts

    async def queue_stats(self) -> dict[ModelName, QueueStats]:
        """Queued requests per model, over all gateways."""
        merged: dict[ModelName, QueueStats] = {}
        for reported in await self._submit("waiting") or ():
            for text, (requests, starved, oldest_ms) in reported.items():
                model = ModelName.parse(text)
                known = merged.get(model, QueueStats(0, 0, float("inf")))
                merged[model] = QueueStats(
                    known.requests + int(requests),
                    known.starved + int(starved),
                    min(known.oldest_s, float(oldest_ms) / 1000),
                )
        return merged
