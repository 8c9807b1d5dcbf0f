"""The autoscaler's operations: who leads, what was begun, how many pods are wanted.

Autoscalers take turns by a lease with a fencing token. An action is written down before it is
carried out, so that whoever takes over does not do it again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from registry.domain.action_log import (
    POOL,
    AutoscalerRecords,
    Leader,
    OngoingActions,
    decode_record,
    decode_wanted,
    encode,
)

if TYPE_CHECKING:
    from registry.domain.action_log import ActionRecord, WantedPods
    from registry.redis.client import Registry


class IntendedAction(StrEnum):
    """Whether an action may begin."""

    OK = "ok"
    BUSY = "busy"
    """One on the same model and pod is under way."""
    FENCED = "fenced"
    """Somebody else leads."""


class Autoscaling:
    """Reads and writes it. All methods raise RegistryUnavailable."""

    def __init__(self, registry: Registry) -> None:
        self._submit = registry.transactions.submit

    async def lead(self, holder: str, *, ttl_s: float) -> int | None:
        """Take or keep the lead; the fencing token, or None where somebody else has it."""
        answer = await self._submit("lead", holder, int(ttl_s * 1000))
        return int(answer[1]) if answer[0] == "ok" else None

    async def resign(self, token: int) -> None:
        """Let another one lead at once."""
        await self._submit("resign", token)

    async def intend(self, token: int, record: ActionRecord, *, ttl_s: float) -> IntendedAction:
        """Write an action down; only after OK may it be carried out."""
        answer = await self._submit(
            "intend", token, record.id, int(ttl_s * 1000), record.subject, encode(record)
        )
        return IntendedAction(answer)

    async def end(self, record: ActionRecord) -> None:
        """Say what became of an action."""
        await self._submit("ended", record.id, record.subject, encode(record))

    async def scale(self, token: int, wanted: WantedPods, record: ActionRecord) -> bool:
        """Say how many pods are wanted; False: somebody else leads."""
        answer = await self._submit("scale", token, encode(wanted), POOL, encode(record))
        return str(answer) != "fenced"

    async def under_way(self) -> OngoingActions:
        """What was begun and has not ended, and the pods that are wanted."""
        return _under_way(*await self._submit("under_way"))

    async def plans(self) -> AutoscalerRecords:
        """All that is written down now."""
        leader, under_way, last, history = await self._submit("plans")
        pairs = list(last or [])
        return AutoscalerRecords(
            leader=_leader(leader),
            now=_under_way(*under_way),
            last={
                name: decode_record(text)
                for name, text in zip(pairs[::2], pairs[1::2], strict=True)
            },
            history=tuple(decode_record(text) for text in history or ()),
        )


def _under_way(intents: Any, wanted: Any) -> OngoingActions:
    return OngoingActions(
        actions=tuple(decode_record(text) for text in intents or ()),
        wanted=decode_wanted(wanted) if isinstance(wanted, str) else None,
    )


def _leader(stored: Any) -> Leader | None:
    if not stored or not isinstance(stored[0], str):
        return None
    return Leader(stored[0], int(stored[1]), float(stored[2]) / 1000)
