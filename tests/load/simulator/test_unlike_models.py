"""Deadlines where models of unlike inference times share a pod: every request counts as its own."""

from typing import Any

import pytest

from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy
from tests.load.simulator.small_cluster import cluster, records, took_s
from tests.load.simulator.traces import Row, trace

HEAVY_S, LIGHT_S = 0.5, 0.01


def run(rows: list[Row], *, slots: int, heavy: str = "60s", light: str = "60s") -> Any:
    """All requests by arrival; `heavy` and `light`: the models' deadlines."""
    deadlines = {"heavy": (HEAVY_S, heavy), "light": (LIGHT_S, light)}
    plan = cluster(
        {"pods": [{"slots": slots}]},
        *(
            {
                "name": name,
                "at": {"n": "device"},
                "infer": {1: f"{infer_s}s"},
                "preprocess": "0s",
                "postprocess": "0s",
                "batching": False,
                "annotations": {"deadline": deadline},
            }
            for name, (infer_s, deadline) in deadlines.items()
        ),
    )
    simulation = Simulation(plan, trace(rows), RoutingPolicy.AUTO)
    simulation.set_measured_times(
        {
            record.spec.key: {
                "infer": deadlines[name.name][0],
                "share": deadlines[name.name][0],
                "preprocess": 0.0,
                "postprocess": 0.0,
            }
            for name, record in simulation.registry.state.models.items()
        }
    )
    return records(simulation)


def test_a_heavy_request_behind_a_light_one_is_served() -> None:
    _, heavy = run([(0.0, "light"), (0.001, "heavy")], slots=1, heavy="900ms")
    assert heavy["status"] == 200
    assert took_s(heavy) == pytest.approx(0.51, abs=0.002)


def test_a_heavy_request_behind_ten_light_ones_is_served() -> None:
    rows: list[Row] = [(0.0, "light")] * 10 + [(0.001, "heavy")]
    *_, heavy = run(rows, slots=16, heavy="900ms", light="800ms")
    assert heavy["status"] == 200
    assert took_s(heavy) == pytest.approx(0.6, abs=0.002)


@pytest.mark.parametrize("slots", [1, 16])
def test_a_light_request_that_a_heavy_one_makes_late_is_refused_at_once(slots: int) -> None:
    _, light = run([(0.0, "heavy"), (0.001, "light")], slots=slots, light="200ms")
    assert (light["status"], light["reason"]) == (504, "deadline")
    assert took_s(light) < 0.001


@pytest.mark.parametrize("slots", [1, 16])
def test_what_is_left_of_a_heavy_request_counts_not_the_whole(slots: int) -> None:
    _, light = run([(0.0, "heavy"), (0.4, "light")], slots=slots, light="200ms")
    assert light["status"] == 200
    assert took_s(light) == pytest.approx(0.11, abs=0.002)


def test_a_light_request_overtakes_heavy_ones_that_wait_for_the_device() -> None:
    rows: list[Row] = [(0.0, "heavy")] * 4 + [(0.4, "light")]
    *_, light = run(rows, slots=16, light="200ms")
    assert light["status"] == 200
    assert took_s(light) == pytest.approx(0.11, abs=0.002)
