"""Interface of policies, live and in the simulator: views of the pool in, actions out.

Actions are carried out in the order of the plan. They are idempotent, and one that is not possible
any more is skipped. Each has a reason for metrics and a detail, a sentence for people. Models are
named by key, pods by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.planning.pool_view import PoolView
    from registry.domain.action_log import PodShape
    from registry.domain.model import Tier


class ActionReason(StrEnum):
    """Reasons of actions, also a metric label."""

    FORECAST = "forecast"
    """Requests are expected."""
    ARRIVING = "arriving"
    """As many requests arrived recently."""
    WAITING = "waiting"
    """Requests are queued."""
    COPIES = "copies"
    """More or fewer copies than annotations or load require."""
    IDLE = "idle"
    """Idle for longer than it is worth keeping."""
    ROOM = "room"
    """Another model needs the memory more."""
    TURN = "turn"
    """Round robin: the model's turn, or the end of it."""
    FLOOR = "floor"
    """The minimum that limits require."""
    CEILING = "ceiling"
    """The maximum that limits allow."""


@dataclass(frozen=True, slots=True)
class Load:
    """Have a model on this tier of a pod, or a nearer one; starts a load unless one is running."""

    key: str
    pod: str
    tier: Tier
    reason: ActionReason
    detail: str = ""


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
    """Have these pods."""

    shapes: tuple[PodShape, ...]
    reason: ActionReason
    detail: str = ""

    @property
    def pods(self) -> int:
        """Of all shapes together."""
        return sum(shape.count for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Send a pod no new requests; it leaves once its running requests are finished."""

    pod: str
    reason: ActionReason
    detail: str = ""


Action = Load | Demote | SetPods | DrainPod

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class LoadingPolicy(Generic[S]):
    """A rule with its parameters. Immutable: its memory is the state that is passed to `plan`."""

    name: str
    start: S
    """The state before the first plan; the caller may start over with it at any time."""
    plan: Callable[[PoolView, S], tuple[tuple[Action, ...], S]]
    """From view and state to actions and next state. Pure."""
    reads_history: bool = False
    """True if `plan` reads `Demand.history`."""
    reads_demand: bool = True
    """True if `plan` reads the demand; otherwise nothing needs to be forecast."""
