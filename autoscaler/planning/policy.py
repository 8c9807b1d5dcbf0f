"""Interface of policies, live and in the simulator: views of the pool in, actions out.

Actions are carried out in the order of the plan. They are idempotent, and an action that is no
longer possible is skipped. Each has a reason, for metrics, and a detail, a sentence for operators.
Models are given by key, pods by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from autoscaler.planning.pool_view import PoolView
from registry.domain.model import Tier
from registry.domain.pod_state import ANY_COPIES
from registry.domain.records import PodShape


class ActionReason(StrEnum):
    """Reasons of actions, also a metric label."""

    FORECAST = "forecast"
    """Requests are expected."""
    ARRIVING = "arriving"
    """Recent arrivals need this many pods."""
    WAITING = "waiting"
    """Requests are queued."""
    COPIES = "copies"
    """More or fewer copies than annotations or load require."""
    IDLE = "idle"
    """A copy was idle longer than it is worth keeping, or a pod is kept until the pool is idle."""
    ROOM = "room"
    """Another model needs the memory more."""
    QUOTA = "quota"
    """The models of the namespace take more memory of the pool than it may use."""
    TURN = "turn"
    """Round robin: the model's turn began or ended."""
    FLOOR = "floor"
    """The pool's limits require at least this many pods."""
    CEILING = "ceiling"
    """The pool's limits allow at most this many pods."""


@dataclass(frozen=True, slots=True)
class Load:
    """Ensure a model is on this tier of a pod or a faster one; starts a load unless one runs."""

    key: str
    pod: str
    tier: Tier
    reason: ActionReason
    detail: str = ""
    max_other_copies: int = ANY_COPIES
    """The load ends if more other pods hold or load the model by then."""


@dataclass(frozen=True, slots=True)
class Demote:
    """Move a model to a lower tier of a pod once no request uses it; `REMOTE`: keep nothing."""

    key: str
    pod: str
    tier: Tier
    reason: ActionReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SetPods:
    """Scale the pool to these pods."""

    shapes: tuple[PodShape, ...]
    reason: ActionReason
    detail: str = ""

    @property
    def pods(self) -> int:
        """Number of pods of all shapes together."""
        return sum(shape.count for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Stop routing requests to a pod; it deregisters once its running requests are finished."""

    pod: str
    reason: ActionReason
    detail: str = ""


Action = Load | Demote | SetPods | DrainPod

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class LoadingPolicy(Generic[S]):
    """A policy with its parameters. Immutable: each `plan` takes a state and returns the next."""

    name: str
    start: S
    """The state before the first plan; the caller may return to it at any time."""
    plan: Callable[[PoolView, S], tuple[tuple[Action, ...], S]]
    """From view and state to actions and next state. Pure."""
    reads_history: bool = False
    """True if `plan` reads `Demand.history`."""
    reads_demand: bool = True
    """True if `plan` reads the demand; otherwise nothing needs to be forecast."""
