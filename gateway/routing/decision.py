"""What a routing policy answers: send, wait, or reject, each with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.reservation import LoadMode


class Reason(StrEnum):
    """Why a request went where it went. A closed set: also a metric label."""

    WARM = "warm"
    WARM_REMOTE = "warm-remote"
    WARMING = "warming"
    WARMING_REMOTE = "warming-remote"
    COLD = "cold"
    COLD_WARM_BUSY = "cold-warm-busy"
    MODEL_OBLIVIOUS = "model-oblivious"
    QUEUE_WARM_BUSY = "queue-warm-busy"
    QUEUE_WARMING = "queue-warming"
    QUEUE_NO_SLOT = "queue-no-slot"
    QUEUE_TARGET = "queue-target"
    """A slot is free, but only at pods with as many inferences under way as the target."""
    NO_PODS = "no-pods"
    DEADLINE = "deadline"
    QUEUE_FULL = "queue-full"
    QUEUE_TIMEOUT = "queue-timeout"
    LOAD_FAILED = "load-failed"
    MODEL_GONE = "model-gone"


@dataclass(slots=True)
class LatencyEstimate:
    """When a request would be answered, counted from now, and what that rests on."""

    seconds: float
    is_measured: bool
    """False where any part is a prior; a deadline is never refused on such a forecast."""


@dataclass(slots=True)
class RoutingOption:
    """One way a policy weighed, for `pilotlight explain`."""

    way: str
    entry: str
    predict: str
    forecast: LatencyEstimate
    credit_s: float = 0.0
    """Taken off its forecast where ways are compared."""


@dataclass(slots=True)
class ColdStartLoss:
    """What a request loses for want of another copy, and the time to load one, in seconds."""

    seconds: float
    load_s: float


@dataclass(slots=True)
class SendTo:
    """Reserve a slot at `entry`, a place in the inference stage of `predict`, and go."""

    entry: str
    predict: str
    mode: LoadMode
    reason: Reason
    max_other_copies: int = -1
    """With `LoadMode.LOAD`: most copies elsewhere for which the load is still wanted; -1: any."""
    target_ongoing: int = 0
    """Most requests in the predict pod's inference stage; 0: any."""
    forecast: LatencyEstimate | None = None
    options: tuple[RoutingOption, ...] = ()
    loss: ColdStartLoss | None = None


@dataclass(slots=True)
class Wait:
    """Stay in the gateway's queue until something changes."""

    reason: Reason
    forecast: LatencyEstimate | None = None
    options: tuple[RoutingOption, ...] = ()
    loss: ColdStartLoss | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer now that it cannot be done."""

    reason: Reason
    message: str
    retry_after_s: float | None = None
    http_status: int | None = None
    """Where the reason alone does not tell: the failed load's own status."""


Decision = SendTo | Wait | Reject
