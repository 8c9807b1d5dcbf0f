"""The interface of a loading policy: a fold over views. Live and in the simulator the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.planning.actions import Action
    from autoscaler.planning.pool_view import PoolView

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class LoadingPolicy(Generic[S]):
    """A rule with its parameters set. Nothing in it changes; what it remembers is its state."""

    name: str
    start: S
    """The state before the first plan; states are values, and may be thrown away at any time."""
    plan: Callable[[PoolView, S], tuple[tuple[Action, ...], S]]
    """What to do now, and what to remember. Pure."""
    reads_history: bool = False
    """Whether it looks at the counts of each demand, beside the forecast."""
    reads_demand: bool = True
    """Whether it looks at the demand at all; else nothing need be forecast for it."""
