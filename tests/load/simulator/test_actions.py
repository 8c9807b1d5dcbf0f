"""What an autoscaler sees and does in a run, and the memory that idle models hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from load.simulator.simulation import Simulation
from registry.domain.model import ModelName, RoutingPolicy, Tier
from tests.load.simulator.test_simulate import cluster, records
from tests.load.simulator.traces import Row, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from load.simulator.simulated_cluster import SimulatedCluster
    from registry.domain.cluster import ClusterState

M = ModelName("default", "m")
BYTES = 100 * 10**6
ALONE_S = 0.13
"""A warm request of the test cluster's model: 10 + 100 + 20 ms, of which 120 ms hold the model."""
HOLD_S = 0.11


@dataclass
class Script:
    """Does one thing at one second of virtual time; remembers what was answered."""

    at_s: int
    do: Callable[[SimulatedCluster], bool]
    every_s: float = 1.0
    answers: list[bool] = field(default_factory=list)
    pods: list[int] = field(default_factory=list)

    def arrived(self, model: ModelName, now_s: float) -> None:
        """What comes does not matter to it."""

    def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
        self.pods.append(len(state.pods))
        if round(now_s) == self.at_s:
            self.answers.append(self.do(actions))


def run(plan: Any, rows: list[Row], script: Script | None = None) -> Simulation:
    return Simulation(plan, trace(rows), RoutingPolicy.COLOCATION, autoscaler=script)


def test_memory_is_wasted_while_a_model_is_on_a_device_and_nobody_uses_it() -> None:
    simulation = run(cluster({}, {"at": {"n": "device"}}), [(0.0, "m"), (10.0, "m")])
    records(simulation)
    idle_s = 10.0 + ALONE_S - 2 * HOLD_S
    assert simulation.summary.wasted_memory_byte_s == pytest.approx(BYTES * idle_s)


def test_an_evicted_model_and_one_of_a_pod_that_dies_waste_no_more() -> None:
    node = {
        "pods": [{"memory": "100MB", "device_rate": "unlimited", "kill": "30s"}, {"start": "29s"}]
    }
    plan = cluster(node, {"count": 2})
    simulation = run(plan, [(0.0, "m-0"), (10.0, "m-1"), (60.0, "m-0")])
    rows = records(simulation)
    [first, second, _] = [row["load_ms"] / 1e3 for row in rows]
    idle_s = (10.0 + 1.0 - first - HOLD_S) + (30.0 - 10.0 - second - HOLD_S)
    last_s = 0.02  # the last answer is postprocessed while its model is idle
    assert simulation.summary.wasted_memory_byte_s == pytest.approx(BYTES * (idle_s + last_s))


def test_a_preloaded_model_is_warm_and_a_dropped_one_is_not() -> None:
    preload = Script(2, lambda actions: actions.preload(M, "n"))
    [row] = records(run(cluster({}), [(9.0, "m")], preload))
    assert (preload.answers, row["start"]) == ([True], "warm")
    plan = cluster({"host_memory": "1GB"}, {"at": {"n": "device"}})
    kept = Script(2, lambda actions: actions.demote(M, "n", Tier.HOST))
    [row] = records(run(plan, [(9.0, "m")], kept))
    assert (kept.answers, row["start"]) == ([True], "host")
    dropped = Script(2, lambda actions: actions.demote(M, "n", Tier.DISK))
    [row] = records(run(plan, [(9.0, "m")], dropped))
    assert (dropped.answers, row["start"]) == ([True], "disk")


@pytest.mark.parametrize(
    "do",
    [
        pytest.param(lambda actions: actions.preload(M, "x"), id="no-pod"),
        pytest.param(lambda actions: actions.preload(ModelName("a", "b"), "n"), id="no-model"),
        pytest.param(lambda actions: actions.demote(M, "n", Tier.HOST), id="not-there"),
        pytest.param(lambda actions: actions.start_pod("n"), id="lives"),
        pytest.param(lambda actions: actions.end_pod("x"), id="no-such-pod"),
    ],
)
def test_what_cannot_be_done_is_not(do: Callable[[SimulatedCluster], bool]) -> None:
    script = Script(2, do)
    records(run(cluster({}), [(9.0, "m")], script))
    assert script.answers == [False]


def test_pods_are_started_and_ended_as_new_processes() -> None:
    plan = cluster({"pods": [{}, {"start": "never"}]}, {"at": {"n-0": "device"}})
    start = Script(2, lambda actions: actions.start_pod("n-1") and actions.end_pod("n-0"))
    rows = records(run(plan, [(0.0, "m"), (9.0, "m")], start))
    assert (start.answers, start.pods[0], start.pods[2]) == ([True], 1, 1)
    assert [row["entry_pod"] for row in rows] == ["n-0", "n-1"]
    twice = Script(2, lambda actions: actions.end_pod("n"))
    again = Script(4, lambda actions: actions.start_pod("n"))

    @dataclass
    class Both:
        every_s: float = 1.0

        def arrived(self, model: ModelName, now_s: float) -> None:
            pass

        def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
            twice.tick(state, now_s, actions)
            again.tick(state, now_s, actions)

    plan = cluster({}, {"at": {"n": "device"}})
    simulation = Simulation(
        plan, trace([(0.0, "m"), (9.0, "m")]), RoutingPolicy.COLOCATION, autoscaler=Both()
    )
    assert [row["start"] for row in records(simulation)] == ["warm", "disk"]
    assert (twice.answers, again.answers) == ([True], [True])
