"""Pods of one machine: its cores and its disk are shared, their own caches and links are not."""

from typing import Any

import pytest

from load.errors import InvalidCluster
from tests.load.simulator.small_cluster import cluster, run, took_s

BARE: dict[str, Any] = {
    "infer": {1: "100ms"}, "preprocess": "0s", "postprocess": "0s", "assets": "0s",
}  # fmt: skip


def _times_s(nodes: list[dict[str, Any]], *models: dict[str, Any]) -> list[float]:
    """Of a request to each model at once."""
    plan = cluster({}, *models, nodes=[{"disk_rate": "1GB/s", **node} for node in nodes])
    rows = [(0.0, each["name"]) for each in models]
    return [round(took_s(row), 6) for row in run(plan, rows)]


def _warm(pod: str, **more: Any) -> dict[str, Any]:
    return BARE | {"name": f"of-{pod}", "at": {pod: "device"}} | more


ONE_NODE = [{"name": "n", "cores": 1, "pods": [{"slots": 1}, {"slots": 1}]}]
TWO_NODES = [
    {"name": name, "machine": "local", "cores": 1, "pods": [{"slots": 1}]} for name in ("a", "b")
]


def test_inferences_of_two_pods_share_the_cores_of_their_node() -> None:
    models = (_warm("n-0"), _warm("n-1"))
    assert _times_s(ONE_NODE, *models) == [0.2, 0.2]
    assert _times_s([ONE_NODE[0] | {"cores": 2}], *models) == [0.1, 0.1]
    assert _times_s([ONE_NODE[0] | {"cores": "unlimited"}], *models) == [0.1, 0.1]


def test_nodes_of_one_machine_share_its_cores() -> None:
    assert _times_s(TWO_NODES, _warm("a"), _warm("b")) == [0.2, 0.2]
    alone = [{key: value for key, value in each.items() if key != "machine"} for each in TWO_NODES]
    assert _times_s(alone, _warm("a"), _warm("b")) == [0.1, 0.1]


def test_a_batch_slows_down_by_the_cores_that_it_and_others_need() -> None:
    """Three threads on two cores: the one with two gets two thirds of what it needs."""
    found = _times_s([ONE_NODE[0] | {"cores": 2}], _warm("n-0", infer_cores={1: 2.0}), _warm("n-1"))
    assert found == [0.15, 0.15]


def test_a_load_slows_down_an_inference_by_the_cores_that_it_needs() -> None:
    cold = BARE | {"name": "cold", "load": {"remote": "1s"}}
    assert _times_s([ONE_NODE[0] | {"pods": [{"slots": 1}] * 2}], cold, _warm("n-0")) == [
        pytest.approx(1.2),
        pytest.approx(0.2),
    ]
    idle = cold | {"load_cpu": {"remote": "0s"}}
    assert _times_s(ONE_NODE, idle, _warm("n-0")) == [pytest.approx(1.1), pytest.approx(0.1)]


def test_stages_and_hops_need_a_core() -> None:
    models = [_warm(pod, preprocess="50ms", postprocess="50ms") for pod in ("a", "b")]
    plan = cluster({}, *models, nodes=TWO_NODES, network={"gateway_hop": "25ms", "pod_hop": "0s"})
    rows = run(plan, [(0.0, "of-a"), (0.0, "of-b")])
    assert [took_s(row) for row in rows] == pytest.approx([0.5, 0.5])


def test_loads_from_disk_share_the_disk_of_the_machine() -> None:
    models = [
        BARE | {"name": f"of-{pod}", "size": "100MB", "load_fixed": "0s", "at": {pod: "disk"}}
        for pod in ("a", "b")
    ]
    nodes = [
        {"name": each["name"], "machine": "local", "disk_rate": "100MB/s", "pods": [{"slots": 1}]}
        for each in TWO_NODES
    ]
    plan = cluster({}, *models, nodes=nodes)
    rows = run(plan, [(0.0, "of-a"), (0.0, "of-b")], policy="colocation")
    assert all(took_s(row) == pytest.approx(2.1) for row in rows)


def test_one_machine_has_one_number_of_cores_and_one_disk() -> None:
    nodes = [TWO_NODES[0], TWO_NODES[1] | {"cores": 2}]
    with pytest.raises(
        InvalidCluster, match=r"machine .local.: cores must be the same, was 1 and 2"
    ):
        cluster({}, _warm("a"), nodes=nodes)


def test_cpu_time_of_a_load_over_links_is_spread_over_its_transfer() -> None:
    """From disk it takes 1 s and half a core, of which the inference leaves as much."""
    from_disk = BARE | {
        "name": "cold", "size": "100MB", "load_fixed": "0s", "load_cpu": {"disk": "500ms"},
        "at": {"n-1": "disk"},
    }  # fmt: skip
    node = ONE_NODE[0] | {"disk_rate": "100MB/s", "object_storage_rate": "1MB/s", "cores": 1.5}
    assert _times_s([node], from_disk, _warm("n-0")) == [pytest.approx(1.1), pytest.approx(0.1)]
