"""Stages, loads and lives of simulated pods, on small traces."""

from typing import Any

import pytest

from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy
from tests.load.simulator.small_cluster import COLOCATION, QUEUEING, cluster, records, run, took_s
from tests.load.simulator.traces import trace


def test_cold_start_takes_the_load_and_the_stages() -> None:
    [cold, warm] = run(cluster({"pods": [{"device_rate": "200MB/s"}]}), [(0.0, "m"), (5.0, "m")])
    assert (cold["start"], warm["start"]) == ("remote", "warm")
    assert took_s(cold) == pytest.approx(1.0 + 0.05 + 0.01 + 0.1 + 0.02)
    assert took_s(warm) == pytest.approx(0.13)
    assert cold["load_ms"] == pytest.approx(1050)  # copied while it is downloaded
    assert [warm[f"{stage}_ms"] for stage in ("preprocess", "infer", "postprocess")] == (
        pytest.approx([10, 100, 20])
    )


def test_faster_pod_infers_faster() -> None:
    rows = run(cluster({"pods": [{"speed": 2}]}), [(0.0, "m"), (9.0, "m")])
    assert took_s(rows[1]) == pytest.approx(0.065)


def test_loads_share_the_link_of_their_machine() -> None:
    plan = cluster({"pods": [{"count": 2, "device_rate": "unlimited"}]}, {"count": 2})
    for row in run(plan, [(0.0, "m-0"), (0.0, "m-1")]):
        assert row["load_ms"] == pytest.approx(2050)


def test_loads_share_the_disk_of_their_machine() -> None:
    two = {"count": 2, "at": {"n-0": "disk"}}
    plan = cluster({"pods": [{"count": 2, "device_rate": "unlimited"}]}, two)
    [alone] = run(plan, [(0.0, "m-0")])
    together = run(plan, [(0.0, "m-0"), (0.0, "m-1")])
    assert alone["load_ms"] == pytest.approx(100 + 50)
    assert [row["load_ms"] for row in together] == pytest.approx([200 + 50] * 2)
    assert {row["start"] for row in together} == {"disk"}
    assert len({row["entry_pod"] for row in together}) == 2


@pytest.mark.parametrize(
    ("pods", "at", "moved_ms"),
    [
        pytest.param({"slots": 2}, "n", 1000, id="one device"),
        pytest.param({"count": 2}, "n-0", 500, id="two devices"),
    ],
)
def test_loads_share_the_link_to_their_device(
    pods: dict[str, Any], at: str, moved_ms: float
) -> None:
    node = {"pods": [{"device_rate": "200MB/s"} | pods], "host_memory": "1GB"}
    plan = cluster(node, {"count": 2, "at": {at: "host"}})
    [alone] = run(plan, [(0.0, "m-0")])
    together = run(plan, [(0.0, "m-0"), (0.0, "m-1")])
    assert alone["load_ms"] == pytest.approx(500 + 50)
    assert [row["load_ms"] for row in together] == pytest.approx([moved_ms + 50] * 2)
    assert {row["start"] for row in together} == {"host"}


def test_later_transfer_shares_the_remaining_link() -> None:
    """100 MB each at 200 MB/s: two have 25 MB each at 0.25 s, all three 75 MB more at 1.375 s."""
    node = {"pods": [{"slots": 3, "device_rate": "200MB/s"}], "host_memory": "1GB"}
    plan = cluster(node, {"count": 3, "at": {"n": "host"}})
    rows = run(plan, [(0.0, "m-0"), (0.0, "m-1"), (0.25, "m-2")])
    assert [row["load_ms"] for row in rows] == pytest.approx([1375 + 50, 1375 + 50, 1250 + 50])


def test_full_disk_keeps_models_of_the_cluster_file() -> None:
    models = {"name": "a", "at": {"n": "disk"}}, {"name": "b", "at": {"n": "device"}}
    [row] = run(cluster({"disk": "150MB"}, *models), [(0.0, "a")])
    assert row["start"] == "disk"


def test_model_is_downloaded_once_per_machine() -> None:
    plan = cluster({"pods": [{"count": 2, "device_rate": "unlimited"}]})
    simulation = Simulation(plan, trace([(0.0, "m"), (0.0, "m")]), COLOCATION)
    assert [row["load_ms"] for row in records(simulation)] == pytest.approx([1050, 1050])
    assert simulation.summary.loads == {"remote": 2}


def test_queueing_at_a_warm_pod_starts_no_load() -> None:
    plan = cluster({"count": 8}, {"at": {"n-3": "device"}})
    simulation = Simulation(plan, trace([(0.001 * n, "m") for n in range(10)]), QUEUEING)
    assert {row["entry_pod"] for row in records(simulation)} == {"n-3"}
    assert not simulation.summary.loads


def test_requests_that_wait_for_the_device_share_a_batch() -> None:
    plan = cluster({"pods": [{"slots": 8}]}, {"at": {"n": "device"}})
    rows = run(plan, [(0.001 * n, "m") for n in range(5)], QUEUEING)
    assert took_s(rows[0]) == pytest.approx(0.13)
    for row in rows[1:]:
        assert row["finished_s"] == pytest.approx(0.01 + 0.1 + 0.16 + 0.02)


def test_evicted_model_is_loaded_from_host_memory() -> None:
    plan = cluster(
        {"pods": [{"memory": "150MB", "device_rate": "1GB/s"}], "host_memory": "1GB"}, {"count": 2}
    )
    rows = run(plan, [(0.0, "m-0"), (10.0, "m-1"), (20.0, "m-0")])
    assert [row["start"] for row in rows] == ["remote", "remote", "host"]
    assert rows[2]["load_ms"] == pytest.approx(150)


def test_full_queue_and_passed_deadline_are_rejected() -> None:
    one = {"at": {"n": "device"}, "batching": False, "annotations": {"queue-depth": 1}}
    rows = run(cluster({}, one), [(0.0, "m"), (0.001, "m"), (0.002, "m")], QUEUEING)
    assert [row["status"] for row in rows] == [200, 200, 429]
    rows = run(cluster({}, one), [(0.0, "m"), (0.01, "m")], QUEUEING, deadline_s=0.15)
    assert [(row["status"], row["reason"]) for row in rows] == [(200, "warm"), (504, "deadline")]


def test_load_waits_for_memory_in_use() -> None:
    plan = cluster(
        {"pods": [{"memory": "150MB", "slots": 2, "device_rate": "unlimited"}]}, {"count": 2}
    )
    rows = run(plan, [(0.0, "m-0"), (1.06, "m-1")])
    assert [row["status"] for row in rows] == [200, 200]
    assert rows[1]["start"] == "remote"


def test_load_without_memory_is_refused_after_the_memory_timeout() -> None:
    plan = cluster({"pods": [{"memory": "150MB", "slots": 2}]}, {"count": 2, "infer": {1: "100s"}})
    rows = run(plan, [(0.0, "m-0"), (1.06, "m-1")])
    assert [row["status"] for row in rows] == [200, 503]
    assert took_s(rows[1]) == pytest.approx(30.0)


def test_load_ends_with_its_last_request_if_nothing_has_come() -> None:
    """The second model waits for memory in use, until the deadline."""
    node = {"pods": [{"memory": "150MB", "slots": 2}], "host_memory": "1GB"}
    plan = cluster(node, {"count": 2, "infer": {1: "10s"}, "at": {"n": "host"}})
    arrivals = trace([(0.0, "m-0"), (1.0, "m-1")], deadline_s=5.0)
    simulation = Simulation(plan, arrivals, COLOCATION)
    assert [row["status"] for row in records(simulation)] == [504, 504]
    assert simulation.summary.loads == {"host": 1}


def test_requests_of_a_dead_pod_are_retried_elsewhere() -> None:
    node = {"pods": [{"kill": "50ms"}, {}]}
    rows = run(cluster(node, {"at": {"n-0": "device"}}), [(0.0, "m"), (1.0, "m")])
    assert [(row["status"], row["entry_pod"]) for row in rows] == [(200, "n-1"), (200, "n-1")]


def test_a_request_that_loses_two_pods_fails_as_live() -> None:
    node = {"pods": [{"kill": "50ms"}, {"kill": "200ms"}, {}]}
    at = {f"n-{number}": "device" for number in range(3)}
    [row] = run(cluster(node, {"at": at, "infer": {1: "1s"}}), [(0.0, "m")])
    assert row["status"] == 503
    assert "2 pods were lost with this request" in row["error"]


def test_request_sent_to_a_dead_pod_is_queued_again() -> None:
    pods = [{"slots": 2, "kill": "2s"}, {"slots": 1}]
    policy = {"queue-timeout": "500ms"}
    plan = cluster({"pods": pods}, {"count": 3, "annotations": policy})
    rows = run(plan, [(at * 0.02, f"m-{at % 3}") for at in range(300)], RoutingPolicy.AUTO)
    assert len({row["request_id"] for row in rows}) == len(rows) == 300
    assert {row["status"] for row in rows} == {200, 504}


def test_dead_pod_is_found_by_its_next_request() -> None:
    node = {"pods": [{"kill": "50ms"}, {}]}
    [row] = run(cluster(node, {"at": {"n-0": "device"}}), [(1.0, "m")])
    assert (row["status"], row["entry_pod"]) == (200, "n-1")


def test_draining_pod_finishes_its_requests_and_takes_no_more() -> None:
    node = {"pods": [{"drain": "50ms"}, {}]}
    rows = run(cluster(node, {"at": {"n-0": "device"}}), [(0.0, "m"), (0.1, "m")])
    assert [row["entry_pod"] for row in rows] == ["n-0", "n-1"]


def test_unknown_model_is_404() -> None:
    [row] = run(cluster({}), [(0.0, "unknown")])
    assert (row["status"], row["reason"]) == (404, "model-not-found")


def test_proxied_request_is_prepared_at_its_entry_pod() -> None:
    plan = cluster(
        {"pods": [{"count": 2}]},
        {"at": {"n-0": "device"}, "assets": "300ms"},
        network={"gateway_hop": "1ms", "pod_hop": "4ms"},
    )
    rows = run(plan, [(0.0, "m"), (0.0, "m")], RoutingPolicy.REMOTE_PROXY)
    proxied = next(row for row in rows if row["entry_pod"] == "n-1")
    assert (proxied["predict_pod"], proxied["reason"]) == ("n-0", "warm-remote")
    assert took_s(proxied) == pytest.approx(0.002 + 0.3 + 0.01 + 0.004 + 0.1 + 0.02)
    assert proxied["network_ms"] == pytest.approx(6)


def test_loads_of_a_pod_take_turns_on_its_link() -> None:
    plan = cluster({"pods": [{"slots": 8, "device_rate": "unlimited"}]}, {"count": 8})
    rows = run(plan, [(0.0, f"m-{number}") for number in range(8)])
    first, last = sorted(took_s(row) for row in rows)[3::4]
    assert first < 5.0 < 8.0 < last
