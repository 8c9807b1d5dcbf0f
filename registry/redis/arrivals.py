"""Arrivals per model as gateways count them, and who waits: told once a second, read by planners.

Seconds are kept for ten minutes, minutes for two days, spans of ten minutes for two weeks; models
that are not declared are not counted, so memory is bounded. Times are the registry's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelName
from registry.domain.queue_stats import QueueStats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from registry.redis.client import Registry


class CountWindow(StrEnum):
    """Lengths of the spans that are counted."""

    SECOND = "second"
    MINUTE = "minute"
    TEN_MINUTES = "ten"


SPAN_S: Mapping[CountWindow, int] = {
    CountWindow.SECOND: 1,
    CountWindow.MINUTE: 60,
    CountWindow.TEN_MINUTES: 600,
}
"""Seconds."""


@dataclass(frozen=True, slots=True)
class ArrivalCounts:
    """Requests of one model in one span that begins at `start_s`, registry time."""

    model: ModelName
    start_s: int
    number: int


class ArrivalLog:
    """Writes and reads the counts. All methods raise RegistryUnavailable."""

    def __init__(self, registry: Registry) -> None:
        self._submit = registry.transactions.submit

    async def tell(
        self,
        gateway: str,
        sequence: int,
        counts: Sequence[tuple[ModelName, int, int]],
        waiting: Mapping[ModelName, QueueStats],
    ) -> None:
        """Hand in (model, number, seconds ago), and who waits now.

        A report that may have been lost is sent again under its old `sequence`.
        """
        await self._submit(
            "arrivals",
            gateway,
            sequence,
            [[str(model), number, ago_s] for model, number, ago_s in counts],
            {
                str(model): [each.requests, each.starved, int(each.oldest_s * 1000)]
                for model, each in waiting.items()
            },
        )

    async def read(self, span: CountWindow, first_s: float, last_s: float) -> list[ArrivalCounts]:
        """Counts of all spans of a kind between two times, both ends included."""
        length_s = SPAN_S[span]
        first, last = int(first_s // length_s), int(last_s // length_s)
        counted: list[ArrivalCounts] = []
        while first <= last:
            found, first = await self._submit("arrivals_in", span, first, last)
            for start, pairs in found or ():
                counted += _counted(int(start) * length_s, pairs)
        return counted

    async def waiting(self) -> dict[ModelName, QueueStats]:
        """Who waits at all gateways together."""
        merged: dict[ModelName, QueueStats] = {}
        for told in await self._submit("waiting") or ():
            for text, (requests, starved, oldest_ms) in told.items():
                model = ModelName.parse(text)
                known = merged.get(model, QueueStats(0, 0, float("inf")))
                merged[model] = QueueStats(
                    known.requests + int(requests),
                    known.starved + int(starved),
                    min(known.oldest_s, float(oldest_ms) / 1000),
                )
        return merged


def _counted(start_s: int, pairs: Sequence[Any]) -> list[ArrivalCounts]:
    return [
        ArrivalCounts(ModelName.parse(name), start_s, int(number))
        for name, number in zip(pairs[::2], pairs[1::2], strict=True)
    ]
