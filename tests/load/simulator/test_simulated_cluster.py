"""Actions of an autoscaler in a run, and the memory of idle models."""

from collections.abc import Callable
from typing import Any

import pytest

from load.simulator.simulated_cluster import SimulatedCluster
from load.simulator.simulation import Simulation
from registry.domain.model import ModelName, Tier
from tests.load.simulator.small_cluster import COLOCATION, M, ScriptedAutoscaler, cluster, records
from tests.load.simulator.traces import Row, trace

BYTES = 100 * 10**6
WARM_S = 0.13
"""Time of a warm request: 10 + 100 + 20 ms, of which `HOLD_S` hold the model."""
HOLD_S = 0.11


def at_tick_2(action: Callable[[SimulatedCluster], bool]) -> ScriptedAutoscaler:
    return ScriptedAutoscaler(1.0, None, lambda state, actions: action(actions))


def simulate(
    plan: Any, rows: list[Row], autoscaler: ScriptedAutoscaler | None = None
) -> Simulation:
    return Simulation(plan, trace(rows), COLOCATION, autoscaler=autoscaler)


def test_idle_models_on_devices_waste_memory() -> None:
    simulation = simulate(cluster({}, {"at": {"n": "device"}}), [(0.0, "m"), (10.0, "m")])
    records(simulation)
    idle_s = 10.0 + WARM_S - 2 * HOLD_S
    assert simulation.summary.wasted_memory_byte_s == pytest.approx(BYTES * idle_s)


def test_evicted_models_and_dead_pods_waste_no_more_memory() -> None:
    node = {
        "pods": [{"memory": "100MB", "device_rate": "unlimited", "kill": "30s"}, {"start": "29s"}]
    }
    plan = cluster(node, {"count": 2})
    simulation = simulate(plan, [(0.0, "m-0"), (10.0, "m-1"), (60.0, "m-0")])
    [first, second, _] = [row["load_ms"] / 1e3 for row in records(simulation)]
    idle_s = (10.0 - first - HOLD_S) + (30.0 - 10.0 - second - HOLD_S)
    last_s = 0.02  # the last request is postprocessed while its model is idle
    assert simulation.summary.wasted_memory_byte_s == pytest.approx(BYTES * (idle_s + last_s))


@pytest.mark.parametrize(
    ("at", "action", "start"),
    [
        pytest.param({}, lambda actions: actions.preload(M, "n"), "warm", id="preload"),
        pytest.param(
            {"n": "device"},
            lambda actions: actions.demote(M, "n", Tier.HOST),
            "host",
            id="demote-to-host",
        ),
        pytest.param(
            {"n": "device"},
            lambda actions: actions.demote(M, "n", Tier.DISK),
            "disk",
            id="demote-to-disk",
        ),
    ],
)
def test_preload_and_demote_decide_the_tier_of_the_start(
    at: dict[str, str], action: Callable[[SimulatedCluster], bool], start: str
) -> None:
    scaler = at_tick_2(action)
    [row] = records(simulate(cluster({"host_memory": "1GB"}, {"at": at}), [(9.0, "m")], scaler))
    assert (scaler.results, row["start"]) == ([True], start)


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(lambda actions: actions.preload(M, "x"), id="no-pod"),
        pytest.param(lambda actions: actions.preload(ModelName("a", "b"), "n"), id="no-model"),
        pytest.param(lambda actions: actions.demote(M, "n", Tier.HOST), id="not-there"),
        pytest.param(lambda actions: actions.start_pod("n"), id="alive"),
        pytest.param(lambda actions: actions.end_pod("x"), id="no-such-pod"),
    ],
)
def test_impossible_actions_return_false(action: Callable[[SimulatedCluster], bool]) -> None:
    scaler = at_tick_2(action)
    records(simulate(cluster({}), [(9.0, "m")], scaler))
    assert scaler.results == [False]


def test_repeated_preload_returns_false() -> None:
    scaler = ScriptedAutoscaler(1.0, lambda state, actions: actions.preload(M, "n"), repeat=True)
    [row] = records(simulate(cluster({}), [(3.5, "m")], scaler))
    assert scaler.results[:3] == [True, False, False]
    assert row["start"] == "warm"


def test_one_pod_is_started_and_another_drained() -> None:
    plan = cluster({"pods": [{}, {"start": "never"}]}, {"at": {"n-0": "device"}})
    scaler = at_tick_2(lambda actions: actions.start_pod("n-1") and actions.end_pod("n-0"))
    rows = records(simulate(plan, [(0.0, "m"), (9.0, "m")], scaler))
    assert (scaler.results, scaler.pods[0], scaler.pods[2]) == ([True], 1, 1)
    assert [row["entry_pod"] for row in rows] == ["n-0", "n-1"]


def test_pod_that_is_started_again_is_a_new_process() -> None:
    scaler = ScriptedAutoscaler(
        1.0,
        None,
        lambda state, actions: actions.end_pod("n"),
        None,
        lambda state, actions: actions.start_pod("n"),
    )
    plan = cluster({}, {"at": {"n": "device"}})
    rows = records(simulate(plan, [(0.0, "m"), (9.0, "m")], scaler))
    assert [row["start"] for row in rows] == ["warm", "disk"]
    assert scaler.results == [True, True]
