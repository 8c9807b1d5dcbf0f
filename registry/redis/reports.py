"""What processes report in Redis: arrivals and queue lengths, copies, GPUs; the autoscalers' log.

Gateways report arrivals once a second.

Counts per second are kept for ten minutes, per minute for two days, per ten minutes for two weeks.
Models that are not declared are not counted, which bounds the memory. Times are the registry's.

Schedulers of workflows announce arrivals, which autoscalers read at each tick: each scheduler
replaces its own, and those of one that is gone end with their time.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from math import inf, isfinite
from typing import Any, Final

import orjson

from registry.domain.demand import (
    WINDOW_S,
    ArrivalCount,
    ArrivalHint,
    CountWindow,
    ExpectedRates,
    QueueStats,
    decode_expected,
    encode_expected,
)
from registry.domain.model import ModelName, name_of_key
from registry.domain.pod import CopyReport, GpuReading
from registry.domain.pool_demand import PoolAdvice, PoolDemand
from registry.domain.records import (
    POOL,
    ActionOutcome,
    ActionRecord,
    AutoscalerRecords,
    LeaderLease,
    OngoingActions,
    PlacementRecord,
    WantedPods,
    decode,
    decode_action,
    decode_wanted,
    encode,
    encode_action,
    encode_wanted,
)
from registry.errors import NoFigures, RegistryUnavailable
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
        return _merged(await self._submit("waiting") or ())


def _merged(reports: Iterable[Mapping[str, Sequence[Any]]]) -> dict[ModelName, QueueStats]:
    merged: dict[ModelName, QueueStats] = {}
    for reported in reports:
        for text, (requests, starved, oldest_ms) in reported.items():
            model = ModelName.parse(text)
            known = merged.get(model, QueueStats(0, 0, float("inf")))
            merged[model] = QueueStats(
                known.requests + int(requests),
                known.starved + int(starved),
                min(known.oldest_s, float(oldest_ms) / 1000),
            )
    return merged


KEPT_DEMAND_S: Final = 60.0
"""How long the last figures for other scalers hold where Redis does not answer."""


class PoolDemandReader:
    """Reads one pool's demand for other scalers; keeps the last one for an outage of Redis."""

    def __init__(self, registry: Registry) -> None:
        self._submit = registry.transactions.submit
        self._last = PoolDemand(None, {}, {}, -inf, -inf)
        self._read_at_s = -inf

    async def read(self) -> PoolDemand:
        """Raises NoFigures."""
        try:
            self._last = _demand(*await self._submit("demand"))
            self._read_at_s = time.monotonic()
        except (RegistryUnavailable, ValueError, TypeError, LookupError) as error:
            if time.monotonic() - self._read_at_s > KEPT_DEMAND_S:
                raise NoFigures(
                    f"the registry has had no readable figures for {KEPT_DEMAND_S:g} s: {error}"
                ) from error
        return self._last


def _demand(advice: Any, waiting: Any, expected: Any, now_ms: Any) -> PoolDemand:
    """Raises ValueError, TypeError, LookupError."""
    now_s, rates = int(now_ms) / 1000, decode_expected(expected) if expected else ExpectedRates()
    per_s: defaultdict[ModelName, float] = defaultdict(float)
    for key, rate in rates.at(now_s).items():
        per_s[name_of_key(key)] += rate
    known = decode(PoolAdvice, advice) if advice else None
    return PoolDemand(known, _merged(waiting or ()), per_s, rates.made_at_s, now_s)


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
        hints = [
            ArrivalHint(ModelName.parse(model), float(probability), float(until_s), float(count))
            for model, probability, until_s, count in orjson.loads(text)
        ]
        is_valid = all(
            0 <= each.probability <= 1 and 1 <= each.count < inf and isfinite(each.until_s)
            for each in hints
        )
        return hints if is_valid else []
    except (ValueError, TypeError, AttributeError):
        return []


async def read_copy_reports(
    registry: Registry,
) -> dict[str, tuple[float, Mapping[str, CopyReport]]]:
    """By pod: registry time of its last report, and its copies by model key.

    Raises RegistryUnavailable. Pods of an older version are absent.
    """
    found = await registry.transactions.submit("copies")
    return {
        str(pod): (
            float(at_ms) / 1000,
            {key: decode(CopyReport, each) for key, each in orjson.loads(text).items()},
        )
        for pod, at_ms, text in found or ()
    }


async def read_gpu_readings(registry: Registry) -> dict[str, GpuReading]:
    """By pod; pods without a GPU are absent. Raises RegistryUnavailable."""
    found = await registry.transactions.submit("gpus")
    return {str(pod): decode(GpuReading, text) for pod, text in found or ()}


async def read_declared_times(registry: Registry) -> dict[str, str]:
    """By `namespace/name`, in Redis' time, as ISO 8601 writes it. Raises RegistryUnavailable."""
    found = list(await registry.transactions.submit("declared") or ())
    return {
        str(name): datetime.fromtimestamp(int(at_ms) / 1000, UTC).isoformat(timespec="milliseconds")
        for name, at_ms in zip(found[::2], found[1::2], strict=True)
    }


async def restore_declared_times(registry: Registry, times: Mapping[str, str]) -> None:
    """Of models that an earlier run declared, as `read_declared_times` gave them."""
    pairs = [
        (name, int(datetime.fromisoformat(at).timestamp() * 1000)) for name, at in times.items()
    ]
    await registry.transactions.submit("declared_at", pairs)


# The autoscalers' shared log: leader's lease, actions, pods wanted, arrivals expected.
#
# One autoscaler at a time leads, by a lease with a fencing token. It records an action before it
# carries the action out, so that its successor does not repeat it.


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

    async def advise(self, token: int, advice: PoolAdvice) -> bool:
        """Publish how many pods other scalers should set; False: the caller does not lead."""
        return str(await self._submit("advise", token, encode(advice))) != "fenced"

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
