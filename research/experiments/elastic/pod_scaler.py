"""An autoscaler for simulated runs that starts and ends pods; a `Rule` sets their number.

Every pod starts `start_s` after its request. A pod finishes its requests before it ends.
"""

from collections.abc import Sequence
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from load.simulator.simulated_cluster import SimulatedCluster
from load.simulator.simulation import Simulation
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName

Arrivals = list[tuple[ModelName, float]]
"""Models and times."""


class Rule(Protocol):
    """Plans the number of pods, and starts loads."""

    interval_s: float

    def plan(self, now_s: float, arrivals: Arrivals, cluster: SimulatedCluster) -> int:
        """Start loads and return the wanted number of pods.

        `arrivals` are those since the last plan.
        """


class PodScaler:
    """Implements `load.simulator.simulation.SimulatedAutoscaler`."""

    def __init__(
        self, rule: Rule, pods: Sequence[str], *, start_s: float, every_s: float = 0.1
    ) -> None:
        """`pods` in the order in which they are started; pods that run at the start come first."""
        self.every_s = every_s
        self.pods_at: list[tuple[float, int]] = []
        """Time and number of running pods, at every tick."""
        self._arrivals: Arrivals = []
        self._rule = rule
        self._names = pods
        self._start_s = start_s
        self._starting: dict[str, float] = {}
        self._next_plan_s = 0.0

    def arrived(self, model: ModelName, now_s: float) -> None:
        self._arrivals.append((model, now_s))

    def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
        """Start pods that are due, and plan once per interval of the rule."""
        for name in [name for name, at_s in self._starting.items() if at_s <= now_s]:
            del self._starting[name]
            actions.start_pod(name)
        self.pods_at.append((now_s, len(state.pods)))
        if now_s + 1e-9 < self._next_plan_s:
            return
        self._next_plan_s = now_s + self._rule.interval_s
        wanted = self._rule.plan(now_s, self._arrivals, actions)
        self._arrivals.clear()
        self._set_pods(state, now_s, wanted, actions)

    def _set_pods(
        self, state: ClusterState, now_s: float, wanted: int, actions: SimulatedCluster
    ) -> None:
        planned = [name for name in self._names if name in state.pods or name in self._starting]
        missing = [name for name in self._names if name not in planned]
        for name in missing[: max(0, wanted - len(planned))]:
            self._starting[name] = now_s + self._start_s
        for name in reversed(planned[wanted:]):
            if self._starting.pop(name, None) is None:
                actions.end_pod(name)


def arrivals_and_latencies_s(run: Simulation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Runs the simulation: arrival time and latency of each request, infinite for a failed one."""
    at_s, latency_s = [np.zeros(0)], [np.zeros(0)]
    for batch in run:
        arrived, finished, status = (
            batch.column(name).to_numpy(zero_copy_only=False)
            for name in ("scheduled_s", "finished_s", "status")
        )
        at_s.append(arrived)
        latency_s.append(np.where(status == 200, finished - arrived, inf))
    return np.concatenate(at_s), np.concatenate(latency_s)
