"""An autoscaler in a run that starts and ends pods: a rule says how many, they come after a while.

Pods that are wanted come `start_s` later, whoever wants them; every pod that comes loads what the
rule says. Pods that are to go answer what they have first.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.simulator.simulated_cluster import SimulatedCluster
    from registry.domain.cluster import ClusterState
    from registry.domain.demand import QueueStats
    from registry.domain.model import ModelName


class Rule(Protocol):
    """How many pods, and what is loaded where."""

    every_s: float

    def plan(self, now_s: float, seen: PoolObservations, actions: SimulatedCluster) -> int:
        """The pods to have from now on; loads are begun through `actions`."""


class PoolObservations:
    """What a rule sees beside the clock."""

    def __init__(
        self,
        state: ClusterState,
        asked: Counter[ModelName],
        in_system: int,
        waiting: Mapping[ModelName, QueueStats],
    ) -> None:
        self.state = state
        self.asked = asked
        """Requests so far, by model."""
        self.in_system = in_system
        """Requests that came and are not answered yet."""
        self.waiting = waiting
        """Requests that no pod has taken yet, by model."""


class PodScaler:
    """See `load.simulator.simulation.Autoscaler`."""

    def __init__(
        self, rule: Rule, pods: Sequence[str], *, start_s: float, every_s: float = 0.1
    ) -> None:
        """`pods` in the order in which they are started; those that live at the start first."""
        self.every_s = every_s
        self.asked: Counter[ModelName] = Counter()
        self.started: Counter[str] = Counter()
        self.pods_at: list[tuple[float, int]] = []
        """Pods that live, by looking at every tick."""
        self._rule = rule
        self._names = pods
        self._start_s = start_s
        self._coming: dict[str, float] = {}
        self._next_plan_s = 0.0

    def arrived(self, model: ModelName, now_s: float) -> None:
        """Count a request."""
        self.asked[model] += 1

    def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
        """Start what is due; plan when it is time."""
        for name in [name for name, at_s in self._coming.items() if at_s <= now_s]:
            del self._coming[name]
            if actions.start_pod(name):
                self.started[name] += 1
        self.pods_at.append((now_s, len(state.pods)))
        if now_s + 1e-9 < self._next_plan_s:
            return
        self._next_plan_s = now_s + self._rule.every_s
        seen = PoolObservations(state, self.asked, actions.open_requests, actions.waiting())
        wanted = self._rule.plan(now_s, seen, actions)
        self._follow(state, now_s, wanted, actions)

    def _follow(
        self, state: ClusterState, now_s: float, wanted: int, actions: SimulatedCluster
    ) -> None:
        there = [name for name in self._names if name in state.pods or name in self._coming]
        for name in self._names:
            if len(there) >= wanted:
                break
            if name not in state.pods and name not in self._coming:
                self._coming[name] = now_s + self._start_s
                there.append(name)
        for name in reversed(there[wanted:] if wanted < len(there) else []):
            if self._coming.pop(name, None) is None:
                actions.end_pod(name)
