"""Arrivals that schedulers of workflows announce; autoscalers read them at each tick.

Each scheduler replaces its own; those of one that is gone end with their time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from registry.domain.demand import ArrivalHint
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.redis.client import Registry

MAX_HINTS: Final = 1_000
"""Of one scheduler; the models with the most expected arrivals."""


class ArrivalHints:
    """The hints of one pool. All methods raise RegistryUnavailable."""

    def __init__(self, registry: Registry) -> None:
        self._submit = registry.transactions.submit

    async def put(self, owner: str, hints: Sequence[ArrivalHint], *, ttl_s: float) -> None:
        """Replace what `owner` has announced."""
        most = sorted(hints, key=lambda each: -each.probability * each.count)[:MAX_HINTS]
        rows = [[str(each.model), each.probability, each.until_s, each.count] for each in most]
        text = orjson.dumps(rows).decode() if rows else ""
        await self._submit("put_hints", owner, text, int(ttl_s * 1000))

    async def read(self) -> list[ArrivalHint]:
        """What all owners announce, as long as its time is not over.

        Nothing of an owner whose announcement cannot be read: another version may have written it.
        """
        texts = await self._submit("hints") or ()
        return [hint for text in texts for hint in _decoded(text)]


def _decoded(text: str | bytes) -> list[ArrivalHint]:
    try:
        return [
            ArrivalHint(ModelName.parse(model), float(probability), float(until_s), float(count))
            for model, probability, until_s, count in orjson.loads(text)
        ]
    except (ValueError, TypeError, AttributeError):
        return []
