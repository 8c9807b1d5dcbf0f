"""Tracks which draining pods may be set ready again. Pure; times in seconds on one clock.

A pod drains because the controller or the autoscaler started it, or because its process is shutting
down (SIGTERM, `preStop`, a lost device). Only the first kind may be cancelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from registry.domain.pod import PodPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.pod_state import PodState

UNTRACKED_DRAIN_S: Final = 60.0
"""After this time a drain that was not started here counts as left over from an earlier leader: a
process that is shutting down drains for less."""


@dataclass(frozen=True, slots=True)
class _StartedDrain:
    epoch: int
    at_s: float


class DrainTracker:
    """The drains of one pool that were started here. Used by one task only."""

    def __init__(self) -> None:
        self._started: dict[str, _StartedDrain] = {}
        self._draining_since_s: dict[str, float] = {}
        """When each draining pod was first observed draining."""

    def observe(self, pods: Mapping[str, PodState], now_s: float) -> None:
        """Update the pods' phases; drops drains of pods that are gone or registered again."""
        self._draining_since_s = {
            name: self._draining_since_s.get(name, now_s)
            for name, pod in pods.items()
            if pod.phase is PodPhase.DRAINING
        }
        self._started = {
            name: drain
            for name, drain in self._started.items()
            if name in pods and pods[name].epoch == drain.epoch
        }

    def start(self, pod: PodState, now_s: float) -> None:
        self._started[pod.name] = _StartedDrain(pod.epoch, now_s)

    def cancel(self, name: str) -> None:
        self._started.pop(name, None)

    def started_s(self, name: str) -> float | None:
        """When its drain was started here; None: it was not."""
        drain = self._started.get(name)
        return None if drain is None else drain.at_s

    def is_shutting_down(self, name: str) -> bool:
        """True if the pod drains and the drain was not started here."""
        return name in self._draining_since_s and name not in self._started

    def cancellable(self, now_s: float) -> list[str]:
        """Draining pods that may be set ready again if they are needed."""
        return [
            name
            for name, since_s in self._draining_since_s.items()
            if name in self._started or now_s - since_s > UNTRACKED_DRAIN_S
        ]
