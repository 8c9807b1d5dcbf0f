"""A small cluster, runs on it, and an autoscaler that follows a script."""

from collections.abc import Callable
from typing import Any

from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.simulated_cluster import SimulatedCluster
from load.simulator.simulation import Simulation
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, RoutingPolicy
from tests.load.simulator.traces import Row, trace

Step = Callable[[ClusterState, SimulatedCluster], Any]

M = ModelName("default", "m")
COLOCATION, QUEUEING = RoutingPolicy.COLOCATION, RoutingPolicy.COLOCATION_QUEUEING
MODEL: dict[str, Any] = {
    "name": "m", "size": "100MB", "infer": {1: "100ms", 4: "160ms"}, "preprocess": "10ms",
    "postprocess": "20ms", "load_fixed": "50ms",
}  # fmt: skip
NODE: dict[str, Any] = {
    "name": "n",
    "object_storage_rate": "100MB/s",
    "disk_rate": "1GB/s",
    "pods": [{}],
}


def cluster(node: dict[str, Any], *models: dict[str, Any], **more: Any) -> Any:
    """Pods have one slot unless `node` says otherwise."""
    node = NODE | node
    document = {
        "network": {"gateway_hop": "0s", "pod_hop": "0s"},
        "nodes": [node | {"pods": [{"slots": 1} | pod for pod in node["pods"]]}],
        "models": [MODEL | model for model in models or ({},)],
    }
    return cluster_of(document | more, source="test")


def run(
    plan: Any, rows: list[Row], policy: str = COLOCATION, seed: int = 0, **options: Any
) -> list[dict[str, Any]]:
    return records(Simulation(plan, trace(rows, **options), policy, seed))


def records(simulation: Simulation) -> list[dict[str, Any]]:
    """All records, by arrival."""
    rows = [row for batch in simulation for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["scheduled_s"], row["request_id"]))


def took_s(row: dict[str, Any]) -> float:
    return float(row["finished_s"] - row["scheduled_s"])


class ScriptedAutoscaler:
    """Runs one step per tick, None for no step, and keeps the results."""

    def __init__(self, every_s: float, *steps: Step | None, repeat: bool = False) -> None:
        """With `repeat` the last step runs at every further tick."""
        self.every_s = every_s
        self.results: list[Any] = []
        self.arrivals: list[tuple[ModelName, float]] = []
        self.pods: list[int] = []
        """Number of pods at each tick."""
        self._steps = list(steps)
        self._repeat = repeat

    def arrived(self, model: ModelName, now_s: float) -> None:
        self.arrivals.append((model, now_s))

    def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
        self.pods.append(len(state.pods))
        if not self._steps:
            return
        is_last = self._repeat and len(self._steps) == 1
        step = self._steps[0] if is_last else self._steps.pop(0)
        if step is not None:
            self.results.append(step(state, actions))
