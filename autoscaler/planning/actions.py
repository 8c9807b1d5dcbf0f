"""What a plan can ask for. Each action says why: a closed reason for metrics, and words for people.

Actions are wishes about one pool, carried out in the order of the plan. Carrying one out twice
changes nothing, and one that has become impossible is left out. Models go by key, pods by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.model import Tier


class ActionReason(StrEnum):
    """Reasons of actions, also a metric label."""

    FORECAST = "forecast"
    """Requests are expected."""
    ARRIVING = "arriving"
    """As many requests came of late."""
    WAITING = "waiting"
    """Requests wait."""
    COPIES = "copies"
    """Fewer or more copies than the model's annotations or its load ask for."""
    IDLE = "idle"
    """No request for longer than it is worth keeping for."""
    ROOM = "room"
    """Another model needs the memory more."""
    TURN = "turn"
    """Its turn, or the end of it."""
    FLOOR = "floor"
    """The least that limits ask for."""
    CEILING = "ceiling"
    """More than limits allow."""


@dataclass(frozen=True, slots=True)
class Load:
    """Have a model on a tier of a pod, or nearer; begins a load unless one is under way."""

    key: str
    pod: str
    tier: Tier
    why: ActionReason
    words: str = ""


@dataclass(frozen=True, slots=True)
class Demote:
    """Let a model sink to a tier of a pod, once no request uses it; `REMOTE`: keep nothing."""

    key: str
    pod: str
    tier: Tier
    why: ActionReason
    words: str = ""


@dataclass(frozen=True, slots=True)
class SetPods:
    """Have so many pods."""

    pods: int
    why: ActionReason
    words: str = ""


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Send a pod nothing new; it leaves when it has answered what it has."""

    pod: str
    why: ActionReason
    words: str = ""


Action = Load | Demote | SetPods | DrainPod
