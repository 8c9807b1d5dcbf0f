"""What autoscalers record: actions with their reasons, the pods wanted, the leader's lease."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from registry.domain.accelerator import AcceleratorKind

_ANY_KIND: Final = AcceleratorKind()
POOL = "pool"
"""Subject of actions on pods; actions on a model have its name as subject."""


@dataclass(frozen=True, slots=True)
class PodShape:
    """A wanted number of pods of one accelerator kind."""

    count: int
    kind: AcceleratorKind = _ANY_KIND
    """The default matches any accelerator."""
    batch_caps: tuple[tuple[str, int], ...] = ()
    """(model key, rows): the largest batches of models without the annotation `max-batch-size`."""


@dataclass(frozen=True, slots=True)
class WantedPods:
    """The wanted pods of a pool, and the names of the pods to remove first."""

    shapes: tuple[PodShape, ...]
    leaving: tuple[str, ...] = ()

    @property
    def pods(self) -> int:
        """The total of all shapes: the size of the pool."""
        return sum(shape.count for shape in self.shapes)

    def batch_caps(self, kind: AcceleratorKind) -> dict[str, int]:
        """Rows by model key, in pods of this kind."""
        shapes = [each for each in self.shapes if each.kind in (kind, _ANY_KIND)]
        return dict(cap for shape in shapes for cap in shape.batch_caps)


class ActionOutcome(StrEnum):
    """The state of an action: in progress, or how it ended."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """The load's claim was refused: another pod loads the model, or has it."""


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One action of an autoscaler, and why it was taken."""

    verb: str
    """`load`, `demote` or `scale`."""
    subject: str
    """The model's name, or `POOL`."""
    reason: str
    """One of a closed set, since it is also a metric label."""
    detail: str
    """The reason as a sentence. Its name in JSON is `words`."""
    at_s: float
    """Registry time at which the action began."""
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
    """The autoscaler that plans for the pool; `until_s` is registry time."""

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
    read_at_s: float
    """Registry time at which all of this was so."""
