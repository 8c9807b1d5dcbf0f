"""Which pods that drain may be called back: those that were sent away from here, and strays.

A process that ends by itself (SIGTERM, `preStop`, a lost device) says that it drains, too, and is
left to itself. Whoever sends pods away in the registry, `draining` or `pod_phases`, goes by this.
Pure; times in seconds on one clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from registry.domain.pod import PodPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.pod_state import PodState

STRAY_S: Final = 60.0
"""Whoever led before may have sent a pod away and not called it back; a process that ends by
itself drains for less."""


@dataclass(frozen=True, slots=True)
class _Sent:
    epoch: int
    at_s: float


class DrainTracker:
    """The pods of one pool that were sent away from here. One owner."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}
        self._drains_s: dict[str, float] = {}
        """Since when a pod has been seen draining."""

    def look(self, pods: Mapping[str, PodState], now_s: float) -> None:
        """Take in the pods as they are now: those that are gone, or are others, were not sent."""
        self._drains_s = {
            name: self._drains_s.get(name, now_s)
            for name, pod in pods.items()
            if pod.phase is PodPhase.DRAINING
        }
        self._sent = {
            name: sent
            for name, sent in self._sent.items()
            if name in pods and pods[name].epoch == sent.epoch
        }

    def send(self, pod: PodState, now_s: float) -> None:
        """It is told now that it drains."""
        self._sent[pod.name] = _Sent(pod.epoch, now_s)

    def call_back(self, name: str) -> None:
        """It is told now that it stays."""
        self._sent.pop(name, None)

    def since_s(self, name: str) -> float | None:
        """When it was sent away from here; None: it was not."""
        sent = self._sent.get(name)
        return None if sent is None else sent.at_s

    def ends_itself(self, name: str) -> bool:
        """Whether it drains, and was not sent."""
        return name in self._drains_s and name not in self._sent

    def to_call_back(self, now_s: float) -> list[str]:
        """Those that drain and need not, unless they are still to go."""
        return [
            name
            for name, since_s in self._drains_s.items()
            if name in self._sent or now_s - since_s > STRAY_S
        ]
