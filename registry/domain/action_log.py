"""What autoscalers record: actions with their reasons, the pods wanted, the leader's lease."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

POOL = "pool"
"""Subject of actions on pods; actions on a model have its name as subject."""


@dataclass(frozen=True, slots=True)
class WantedPods:
    """How many pods a pool is to have, and which ones to remove first when there are more."""

    pods: int
    leaving: tuple[str, ...] = ()


class ActionOutcome(StrEnum):
    """The state of an action: in progress, or how it ended."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One action of an autoscaler, and why it was taken."""

    verb: str
    """`load`, `demote` or `scale`."""
    subject: str
    """The model's name, or `POOL`."""
    reason: str
    """Of a closed set: also a metric label."""
    detail: str
    """The reason as a sentence. Its name in JSON is `words`."""
    at_s: float
    """Registry time of the begin."""
    pod: str = ""
    tier: str = ""
    outcome: str = ActionOutcome.BEGUN
    error: str = ""

    @property
    def id(self) -> str:
        """At most one action with this id is in progress at a time."""
        return f"{self.subject}|{self.pod}"


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """Which autoscaler plans for the pool; `until_s` is registry time."""

    holder: str
    token: int
    until_s: float


@dataclass(frozen=True, slots=True)
class OngoingActions:
    """Actions that have not ended, and the pods wanted; None before the first decision."""

    actions: tuple[ActionRecord, ...]
    wanted: WantedPods | None


@dataclass(frozen=True, slots=True)
class AutoscalerRecords:
    """Everything that autoscalers have recorded for a pool."""

    leader: LeaderLease | None
    """None while no autoscaler holds the lease."""
    ongoing: OngoingActions
    last_by_model: dict[str, ActionRecord]
    history: tuple[ActionRecord, ...]
    """The latest actions on all subjects, newest first."""
