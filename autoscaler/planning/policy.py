"""Interface of a loading policy: a fold over views of the pool, live and in the simulator."""

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
