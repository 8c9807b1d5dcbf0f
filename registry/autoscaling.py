"""The autoscaler in the registry: who leads, what was begun and why, how many pods are wanted.

Autoscalers take turns by a lease with a fencing token. An action is written down before it is
carried out, so that whoever takes over does not do it again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from registry.client import Registry

POOL = "pool"
"""Subject of actions about pods; a model's are filed under its name."""


@dataclass(frozen=True, slots=True)
class WantedPods:
    """How many pods a pool is to have, and which ones go first when there are more."""

    pods: int
    leaving: tuple[str, ...] = ()


class Outcome(StrEnum):
    """What became of an action."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """What the autoscaler did, and why."""

    verb: str
    """`load`, `demote` or `scale`."""
    subject: str
    """The model's name, or `POOL`."""
    reason: str
    """Of a closed set: also a metric label."""
    words: str
    """The same for people."""
    at_s: float
    """Registry time at which it was begun."""
    pod: str = ""
    tier: str = ""
    outcome: str = Outcome.BEGUN
    error: str = ""

    @property
    def id(self) -> str:
        """What at most one action at a time is about."""
        return f"{self.subject}|{self.pod}"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who plans; `until_s` is registry time."""

    holder: str
    token: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Plans:
    """What autoscalers have written down."""

    leader: Leader | None
    under_way: tuple[ActionRecord, ...]
    last: dict[str, ActionRecord]
    """The last action by model name."""
    history: tuple[ActionRecord, ...]
    """The last ones of all subjects, newest first."""
    wanted: WantedPods | None


class Intended(StrEnum):
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

    async def intend(self, token: int, record: ActionRecord, *, ttl_s: float) -> Intended:
        """Write an action down; only after OK may it be carried out."""
        answer = await self._submit(
            "intend", token, record.id, int(ttl_s * 1000), record.subject, _encode(record)
        )
        return Intended(answer)

    async def end(self, record: ActionRecord) -> None:
        """Say what became of an action."""
        await self._submit("ended", record.id, record.subject, _encode(record))

    async def scale(self, token: int, wanted: WantedPods, record: ActionRecord) -> bool:
        """Say how many pods are wanted; False: somebody else leads."""
        answer = await self._submit("scale", token, _encode(wanted), POOL, _encode(record))
        return str(answer) != "fenced"

    async def plans(self) -> Plans:
        """All that is written down now."""
        leader, under_way, last, history, wanted = await self._submit("plans")
        pairs = list(last or [])
        return Plans(
            leader=_leader(leader),
            under_way=tuple(decode_record(text) for text in under_way or ()),
            last={
                name: decode_record(text)
                for name, text in zip(pairs[::2], pairs[1::2], strict=True)
            },
            history=tuple(decode_record(text) for text in history or ()),
            wanted=decode_wanted(wanted) if isinstance(wanted, str) else None,
        )


def decode_wanted(text: str) -> WantedPods:
    """Read what `scale` wrote."""
    stored = orjson.loads(text)
    return WantedPods(int(stored["pods"]), tuple(stored["leaving"]))


def decode_record(text: str) -> ActionRecord:
    """Read what `intend` wrote; fields of a newer version are left out."""
    known = {field.name for field in fields(ActionRecord)}
    stored: dict[str, Any] = orjson.loads(text)
    return ActionRecord(**{name: value for name, value in stored.items() if name in known})


def _encode(value: ActionRecord | WantedPods) -> str:
    return orjson.dumps(asdict(value)).decode()


def _leader(stored: Any) -> Leader | None:
    if not stored or not isinstance(stored[0], str):
        return None
    return Leader(stored[0], int(stored[1]), float(stored[2]) / 1000)
