"""What the autoscaler wrote down: its actions with their reasons, the pods it wants, who leads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import orjson

POOL = "pool"
"""Subject of actions about pods; a model's are filed under its name."""


@dataclass(frozen=True, slots=True)
class WantedPods:
    """How many pods a pool is to have, and which ones go first when there are more."""

    pods: int
    leaving: tuple[str, ...] = ()


class ActionOutcome(StrEnum):
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
    outcome: str = ActionOutcome.BEGUN
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
class OngoingActions:
    """Actions that have not ended, and the pods that are wanted; None: nobody has said."""

    actions: tuple[ActionRecord, ...]
    wanted: WantedPods | None


@dataclass(frozen=True, slots=True)
class AutoscalerRecords:
    """What autoscalers have written down."""

    leader: Leader | None
    """None: nobody leads now."""
    now: OngoingActions
    last: dict[str, ActionRecord]
    """The last action by model name."""
    history: tuple[ActionRecord, ...]
    """The last ones of all subjects, newest first."""


def decode_wanted(text: str) -> WantedPods:
    """Read what `scale` wrote."""
    stored = orjson.loads(text)
    return WantedPods(int(stored["pods"]), tuple(stored["leaving"]))


def decode_record(text: str) -> ActionRecord:
    """Read what `intend` wrote; fields of a newer version are left out."""
    known = {field.name for field in fields(ActionRecord)}
    stored: dict[str, Any] = orjson.loads(text)
    return ActionRecord(**{name: value for name, value in stored.items() if name in known})


def encode(value: ActionRecord | WantedPods) -> str:
    """An action or a wish as JSON."""
    return orjson.dumps(asdict(value)).decode()
