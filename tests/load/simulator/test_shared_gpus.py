"""Pods that share a GPU: interference, shares, batch caps, and the router that builds batches."""

from typing import Any

import pytest

from autoscaler.placement.prediction import share_factor
from load.errors import InvalidCluster
from registry.domain.model import RoutingPolicy
from tests.load.simulator.small_cluster import cluster, run, took_s

TWO_MODELS: list[dict[str, Any]] = [
    {
        "name": name,
        "infer": {1: "100ms", 4: "160ms"},
        "preprocess": "0s",
        "postprocess": "0s",
        "sm_utilization": {1: 60, 4: 80},
        "at": {pod: "device"},
    }
    for name, pod in (("a", "n-0"), ("b", "n-1"))
]
PODS = [{"gpu": "g0", "model": "a", "slots": 100}, {"gpu": "g0", "model": "b", "slots": 100}]


def _times_s(rows: list[tuple[float, str]], pods: Any = PODS, **more: Any) -> list[float]:
    plan = cluster({"gpus": ["g0"], "pods": pods}, *TWO_MODELS, **more)
    return [round(took_s(row), 6) for row in run(plan, rows)]


def test_without_interference_neighbours_do_not_matter() -> None:
    assert _times_s([(0.0, "a"), (0.0, "b")]) == [0.1, 0.1]


def test_a_batch_slows_and_quickens_as_its_neighbour_starts_and_ends() -> None:
    """Both use 60 %: while both run, each takes 1.2 times as long."""
    found = _times_s([(0.0, "a"), (0.05, "b")], interference="overlap")
    beside_s = 0.05 * 1.2
    assert found == [pytest.approx(0.05 + beside_s), pytest.approx(beside_s + 0.05)]


def test_a_share_below_the_need_slows_down() -> None:
    pods = [PODS[0] | {"share": 30}, PODS[1]]
    assert _times_s([(0.0, "a"), (1.0, "b")], pods) == [
        pytest.approx(0.1 * share_factor(60, 30), abs=1e-6),
        0.1,
    ]


def test_a_placed_model_keeps_to_its_pod_and_batch_cap() -> None:
    pods = [PODS[0] | {"batch": 2}, PODS[1]]
    plan = cluster({"gpus": ["g0"], "pods": pods}, *TWO_MODELS)
    rows = run(plan, [(0.0, "a")] * 5, RoutingPolicy.AUTO)
    assert {row["predict_pod"] for row in rows} == {"n-0"}
    # One alone, then two batches of two, each of 120 ms.
    assert sorted(round(took_s(row), 6) for row in rows) == [0.1, 0.22, 0.22, 0.34, 0.34]


def test_batches_are_built_for_the_replicas_in_turn() -> None:
    model = TWO_MODELS[0] | {
        "at": {"n-0": "device", "n-1": "device"},
        "annotations": {"max-batch-wait": "100ms"},
    }
    pods = [
        {"gpu": "g0", "model": "a", "slots": 100, "batch": 2},
        {"gpu": "g1", "model": "a", "slots": 100, "batch": 3},
    ]
    plan = cluster({"gpus": ["g0", "g1"], "pods": pods}, model)
    arrivals = [(at / 1000, "a") for at in (0, 10, 20, 30, 40, 50, 200, 210)]
    rows = run(plan, arrivals, "batch-round-robin")
    assert [row["predict_pod"] for row in rows] == ["n-0"] * 2 + ["n-1"] * 3 + ["n-0"] + ["n-1"] * 2
    finished = [round(row["finished_s"], 6) for row in rows]
    assert finished[:2] == [pytest.approx(0.01 + 0.12)] * 2  # sent when full
    assert finished[2:5] == [pytest.approx(0.04 + 0.14)] * 3
    assert finished[5] == pytest.approx(0.15 + 0.1)  # after 100 ms, alone
    assert finished[6:] == [pytest.approx(0.3 + 0.12)] * 2


@pytest.mark.parametrize(
    ("node", "more", "expected"),
    [
        pytest.param({"pods": [{"gpu": "g9"}]}, {}, "gpus must name the pods' GPU 'g9'", id="gpu"),
        pytest.param({"pods": [{"share": 10}]}, {}, "share needs gpu", id="share"),
        pytest.param({"pods": [{"batch": 2}]}, {}, "batch needs model", id="batch"),
        pytest.param(
            {"pods": [{"model": "z"}]},
            {},
            "model must be one of models, was 'default/z'",
            id="model",
        ),
        pytest.param({"pods": [{"gpu": "g0", "share": 0}]}, {}, "share", id="zero"),
    ],
)
def test_mistakes_are_reported(node: dict[str, Any], more: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidCluster, match=expected):
        cluster({"gpus": ["g0"]} | node, **more)
