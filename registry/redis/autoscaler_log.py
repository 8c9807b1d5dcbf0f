"""The autoscalers' shared log in Redis: leader's lease, actions, pods wanted, arrivals expected.

One autoscaler at a time leads, by a lease with a fencing token. It records an action before it
carries the action out, so that its successor does not repeat it.
"""

from dataclasses import replace
from enum import StrEnum
from typing import Any

from registry.domain.demand import ExpectedRates, encode_expected
from registry.domain.records import (
    POOL,
    ActionOutcome,
    ActionRecord,
    AutoscalerRecords,
    LeaderLease,
    OngoingActions,
    PlacementRecord,
    WantedPods,
    decode_action,
    decode_wanted,
    encode,
    encode_action,
    encode_wanted,
)
from registry.redis.client import Registry


class BeginResult(StrEnum):
    """Whether an action may be carried out."""

    OK = "ok"
    BUSY = "busy"
    """Another action on the same model and pod is in progress."""
    FENCED = "fenced"
    """The caller does not lead."""


class AutoscalerLog:
    """Reads and writes the log of one pool. All methods raise RegistryUnavailable."""

    def __init__(self, registry: Registry) -> None:
        self._submit = registry.transactions.submit

    async def acquire_lead(
        self, holder: str, *, ttl_s: float, loading: str = "", placement: str = ""
    ) -> int | None:
        """Take or renew the leader's lease; its fencing token, or None while another holds it.

        `loading` and `placement` are the names of its loading policy and planner.
        """
        status, value = await self._submit("lead", holder, int(ttl_s * 1000), loading, placement)
        return int(value) if status == "ok" else None

    async def release_lead(self, token: int) -> None:
        """End the lease at once instead of at its expiry."""
        await self._submit("resign", token)

    async def begin_action(self, token: int, record: ActionRecord, *, ttl_s: float) -> BeginResult:
        """Record an action, which may be carried out only after OK."""
        result = await self._submit(
            "intend", token, record.id, int(ttl_s * 1000), record.subject, encode_action(record)
        )
        return BeginResult(result)

    async def end_action(self, record: ActionRecord) -> None:
        """Record the outcome of an action; needs no lease."""
        begun = encode_action(replace(record, outcome=ActionOutcome.BEGUN, error=""))
        await self._submit("ended", record.id, record.subject, encode_action(record), begun)

    async def set_wanted_pods(self, token: int, wanted: WantedPods, record: ActionRecord) -> bool:
        """Record how many pods are wanted; False: the caller does not lead."""
        result = await self._submit(
            "scale", token, encode_wanted(wanted), POOL, encode_action(record)
        )
        return str(result) != "fenced"

    async def set_placement(
        self, token: int, placement: PlacementRecord, action: ActionRecord | None = None
    ) -> bool:
        """Record a placement, with an action for a new plan; False: the caller does not lead."""
        subject = "" if action is None else POOL
        text = "" if action is None else encode_action(action)
        result = await self._submit("place", token, encode(placement), subject, text)
        return str(result) != "fenced"

    async def publish_expected_rates(self, token: int, rates: ExpectedRates) -> bool:
        """Publish expected arrivals to gateways; False: the caller does not lead."""
        return str(await self._submit("expect", token, encode_expected(rates))) != "fenced"

    async def ongoing(self) -> OngoingActions:
        return _ongoing(*await self._submit("under_way"))

    async def records(self) -> AutoscalerRecords:
        leader, ongoing, last, history, now_ms = await self._submit("plans")
        pairs = list(last or [])
        return AutoscalerRecords(
            leader=_leader(leader),
            ongoing=_ongoing(*ongoing),
            last_by_model={
                name: decode_action(text)
                for name, text in zip(pairs[::2], pairs[1::2], strict=True)
            },
            history=tuple(decode_action(text) for text in history or ()),
            read_at_s=int(now_ms) / 1000,
        )


def _ongoing(intents: Any, wanted: Any) -> OngoingActions:
    return OngoingActions(
        actions=tuple(decode_action(text) for text in intents or ()),
        wanted=decode_wanted(wanted) if isinstance(wanted, str) else None,
    )


def _leader(stored: Any) -> LeaderLease | None:
    if not stored or not isinstance(stored[0], str):
        return None
    return LeaderLease(stored[0], int(stored[1]), float(stored[2]) / 1000)
