"""Experiments that reproduce published settings say themselves that their pods have one slot."""

import pytest

from load.simulator.cluster.plan import ClusterPlan
from research.experiments.elastic.spike_scenario import SpikeScenario, spike_cluster
from research.experiments.liu.simulated import ModelTimings, simulation_of
from research.experiments.schedulers.runs import cluster
from research.experiments.schedulers.setting import MAIN


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(cluster(MAIN, seed=1), id="blinowski"),
        pytest.param(spike_cluster(SpikeScenario(), ["a", "b"]), id="spike"),
    ],
)
def test_pods_of_published_settings_have_one_slot(plan: ClusterPlan) -> None:
    assert {pod.slots for node in plan.nodes for pod in node.pods} == {1}


def test_lius_pods_have_one_slot() -> None:
    times = {"m": ModelTimings(load_s=1.0, infer_s=1.0, postprocess_s=1.0)}
    run = simulation_of([(0.0, "m")], times, None, seed=1)
    assert list(run) != []
    assert {pod.slots for pod in run.registry.state.pods.values()} == {1}
