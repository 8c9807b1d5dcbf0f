"""What a simulated cluster does with small traces."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from load.errors import InvalidTrace
from load.generator.trace_arrivals import worker_share
from load.schema import RECORD_SCHEMA
from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.errors import WrongTrace
from load.simulator.simulation import Simulation
from registry.domain.model import ModelName, RoutingPolicy
from tests.load.simulator.traces import Row, trace

if TYPE_CHECKING:
    from collections.abc import Iterator

COLOCATION, QUEUEING = RoutingPolicy.COLOCATION, RoutingPolicy.COLOCATION_QUEUEING
MODEL: dict[str, Any] = {
    "name": "m", "size": "100MB", "infer": {1: "100ms", 4: "160ms"}, "preprocess": "10ms",
    "postprocess": "20ms", "load_fixed": "50ms",
}  # fmt: skip
NODE: dict[str, Any] = {
    "name": "n", "object_storage_rate": "100MB/s", "disk_rate": "1GB/s", "pods": [{}],
}  # fmt: skip
NETWORK = {"gateway_hop": "0s", "pod_hop": "0s"}


def cluster(node: dict[str, Any], *models: dict[str, Any], **more: Any) -> Any:
    document = {"nodes": [NODE | node], "models": [MODEL | model for model in models or ({},)]}
    return cluster_of({"network": NETWORK, **document, **more}, source="test")


def run(
    plan: Any, rows: list[Row], policy: RoutingPolicy = COLOCATION, seed: int = 0, **options: Any
) -> list[dict[str, Any]]:
    return records(Simulation(plan, trace(rows, **options), policy, seed))


def records(run: Simulation) -> list[dict[str, Any]]:
    rows = [row for batch in run for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["scheduled_s"], row["request_id"]))


def took_s(row: dict[str, Any]) -> float:
    return float(row["finished_s"] - row["scheduled_s"])


def test_a_cold_start_takes_the_load_and_the_stages() -> None:
    [cold, warm] = run(cluster({"pods": [{"device_rate": "200MB/s"}]}), [(0.0, "m"), (5.0, "m")])
    assert (cold["start"], warm["start"]) == ("remote", "warm")
    assert took_s(cold) == pytest.approx(1.0 + 0.5 + 0.05 + 0.01 + 0.1 + 0.02)
    assert took_s(warm) == pytest.approx(0.13)
    assert cold["load_ms"] == pytest.approx(1550)
    assert [warm[f"{stage}_ms"] for stage in ("preprocess", "infer", "postprocess")] == (
        pytest.approx([10, 100, 20])
    )


def test_a_faster_pod_infers_faster() -> None:
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


def test_who_begins_later_shares_what_is_left() -> None:
    """100 MB each at 200 MB/s: by 0.25 s two have 25 MB each, by 1.375 s all three have 75 more."""
    node = {"pods": [{"slots": 3, "device_rate": "200MB/s"}], "host_memory": "1GB"}
    plan = cluster(node, {"count": 3, "at": {"n": "host"}})
    rows = run(plan, [(0.0, "m-0"), (0.0, "m-1"), (0.25, "m-2")])
    assert [row["load_ms"] for row in rows] == pytest.approx([1375 + 50, 1375 + 50, 1250 + 50])


def test_a_full_disk_keeps_what_the_file_puts_there() -> None:
    models = {"name": "a", "at": {"n": "disk"}}, {"name": "b", "at": {"n": "device"}}
    [row] = run(cluster({"disk": "150MB"}, *models), [(0.0, "a")])
    assert row["start"] == "disk"


def test_a_model_is_downloaded_once_for_a_machine() -> None:
    plan = cluster({"pods": [{"count": 2, "device_rate": "unlimited"}]})
    simulation = Simulation(plan, trace([(0.0, "m"), (0.0, "m")]), COLOCATION)
    assert [row["load_ms"] for row in records(simulation)] == pytest.approx([1050, 1050])
    assert simulation.summary.loads == {"remote": 2}


def test_who_queues_at_a_warm_model_does_not_load_it_again() -> None:
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


def test_an_evicted_model_comes_back_from_host_memory() -> None:
    plan = cluster(
        {"pods": [{"memory": "150MB", "device_rate": "1GB/s"}], "host_memory": "1GB"}, {"count": 2}
    )
    rows = run(plan, [(0.0, "m-0"), (10.0, "m-1"), (20.0, "m-0")])
    assert [row["start"] for row in rows] == ["remote", "remote", "host"]
    assert rows[2]["load_ms"] == pytest.approx(150)


def test_a_full_queue_and_a_passed_deadline_are_refused() -> None:
    one = {"at": {"n": "device"}, "batching": False, "annotations": {"queue-depth": 1}}
    rows = run(cluster({}, one), [(0.0, "m"), (0.001, "m"), (0.002, "m")], QUEUEING)
    assert [row["status"] for row in rows] == [200, 200, 429]
    rows = run(cluster({}, one), [(0.0, "m"), (0.01, "m")], QUEUEING, deadline_s=0.15)
    assert [(row["status"], row["reason"]) for row in rows] == [(200, "warm"), (504, "deadline")]


def test_a_model_that_fits_no_slot_of_memory_in_use_waits_for_it() -> None:
    plan = cluster({"pods": [{"memory": "150MB", "slots": 2, "device_rate": "unlimited"}]},
                   {"count": 2})  # fmt: skip
    rows = run(plan, [(0.0, "m-0"), (1.06, "m-1")])
    assert [row["status"] for row in rows] == [200, 200]
    assert rows[1]["start"] == "remote"


def test_a_request_whose_load_finds_no_room_in_time_goes_elsewhere() -> None:
    """As live: a pod that has not begun says so, and the gateway places the request again."""
    pods = [{"memory": "150MB", "slots": 2}, {"memory": "150MB", "slots": 1, "start": "2s"}]
    plan = cluster({"pods": pods}, {"count": 2, "infer": {1: "100s"}})
    rows = run(plan, [(0.0, "m-0"), (1.06, "m-1")])
    assert [(row["model"], row["status"], row["entry_pod"]) for row in rows] == [
        ("m-0", 200, "n-0"), ("m-1", 200, "n-1"),
    ]  # fmt: skip


def test_requests_of_a_pod_that_dies_go_elsewhere() -> None:
    node = {"pods": [{"kill": "50ms"}, {}]}
    rows = run(cluster(node, {"at": {"n-0": "device"}}), [(0.0, "m"), (1.0, "m")])
    assert [(row["status"], row["entry_pod"]) for row in rows] == [(200, "n-1"), (200, "n-1")]


def test_who_left_the_line_for_a_dead_pod_stands_in_it_again() -> None:
    pods = [{"slots": 2, "kill": "2s"}, {"slots": 1}]
    policy = {"queue-timeout": "500ms"}
    plan = cluster({"pods": pods}, {"count": 3, "annotations": policy})
    rows = run(plan, [(at * 0.02, f"m-{at % 3}") for at in range(300)], RoutingPolicy.AUTO)
    assert len({row["request_id"] for row in rows}) == len(rows) == 300
    assert {row["status"] for row in rows} == {200, 504}


def test_a_draining_pod_answers_what_it_has_and_takes_nothing_new() -> None:
    node = {"pods": [{"drain": "50ms"}, {}]}
    rows = run(cluster(node, {"at": {"n-0": "device"}}), [(0.0, "m"), (0.1, "m")])
    assert [row["entry_pod"] for row in rows] == ["n-0", "n-1"]


def test_an_unknown_model_is_404() -> None:
    [row] = run(cluster({}), [(0.0, "nobody")])
    assert (row["status"], row["reason"]) == (404, "model-not-found")


def test_a_proxied_request_is_prepared_where_it_enters() -> None:
    plan = cluster(
        {"pods": [{"count": 2}]}, {"at": {"n-0": "device"}, "assets": "300ms"},
        network={"gateway_hop": "1ms", "pod_hop": "4ms"},
    )  # fmt: skip
    rows = run(plan, [(0.0, "m"), (0.0, "m")], RoutingPolicy.REMOTE_PROXY)
    proxied = next(row for row in rows if row["entry_pod"] == "n-1")
    assert (proxied["predict_pod"], proxied["reason"]) == ("n-0", "warm-remote")
    assert took_s(proxied) == pytest.approx(0.002 + 0.3 + 0.01 + 0.004 + 0.1 + 0.02)
    assert proxied["network_ms"] == pytest.approx(6)


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_one_seed_gives_one_result_and_every_request_one_row(policy: RoutingPolicy) -> None:
    plan = cluster(
        {"count": 4, "pods": [{"slots": 2, "memory": "250MB"}]}, {"count": 6}, jitter=0.2
    )
    rows = [(0.03 * n, f"m-{n * n % 6}") for n in range(200)]
    first, again = run(plan, rows, policy, 7), run(plan, rows, policy, 7)
    assert first == again
    assert len({row["request_id"] for row in first}) == len(rows)
    assert {row["policy"] for row in first} == {policy.value}
    for row in first:
        stages = ("queue", "load", "preprocess", "infer", "postprocess", "network")
        assert sum(row[f"{stage}_ms"] for stage in stages) == pytest.approx(1000 * took_s(row))


def test_records_have_the_schema_and_come_in_pieces() -> None:
    plan = cluster({}, {"infer": {1: "1us"}})
    rows = [(0.01 * n, "m") for n in range(20_000)]
    batches = list(Simulation(plan, trace(rows), COLOCATION))
    assert all(batch.schema.equals(RECORD_SCHEMA) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == len(rows)
    assert max(batch.num_rows for batch in batches) < 20_000


def test_memory_is_flat_in_the_length_of_the_trace() -> None:
    plan = cluster({"count": 4, "pods": [{"slots": 4}]}, {"infer": {1: "2ms"}, "count": 8})
    at_once = 1_000

    def arrivals() -> Iterator[pa.RecordBatch]:
        for first in range(0, 24 * at_once, at_once):
            rows = [(0.01 * (first + n), f"m-{n % 8}") for n in range(at_once)]
            yield from trace(rows, deadline_s=2.0)

    gc.collect()
    blocks = []
    for batch in Simulation(plan, arrivals(), RoutingPolicy.AUTO):
        del batch
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[23] < 1.01 * blocks[3]  # a request that left one object would add 20,000


@pytest.mark.parametrize("policy", [RoutingPolicy.AUTO, RoutingPolicy.REMOTE_PROXY])
def test_requests_leave_no_cycles_for_the_collector(policy: RoutingPolicy) -> None:
    """Under load, with refusals, deadlines, evictions, a pod that dies and one that drains."""
    pods = [{"memory": "200MB", "slots": 2}, {"slots": 2, "kill": "2s"}, {"drain": "3s"}]
    plan = cluster({"pods": pods}, {"size": "20MB", "infer": {1: "20ms"}, "count": 16})
    rows = [(0.01 * number, f"m-{number % 16:02d}") for number in range(600)]
    run(plan, rows, policy, deadline_s=2.0)  # what is imported on first use may leave some
    gc.collect()
    gc.disable()
    try:
        simulation = Simulation(plan, trace(rows, deadline_s=2.0), policy)
        statuses = {row["status"] for row in records(simulation)}
        left = gc.collect()
    finally:
        gc.enable()
    assert {200, 504} <= statuses
    assert left < len(rows) / 10, "that many would be left by every tenth request"


def test_a_trace_that_goes_back_or_has_other_columns_is_refused() -> None:
    with pytest.raises(WrongTrace, match=r"goes back from 1\.0 s to 0\.5 s"):
        run(cluster({}), [(1.0, "m"), (0.5, "m")])
    with pytest.raises(WrongTrace, match="must have the columns"):
        list(Simulation(cluster({}), [pa.record_batch({"at": [1.0]})]))


class Preloader:
    """Preloads one model at its first tick."""

    every_s = 1.0

    def __init__(self) -> None:
        self.begun: list[bool] = []

    def arrived(self, model: ModelName, now_s: float) -> None:
        pass

    def tick(self, state: Any, now_s: float, actions: Any) -> None:
        self.begun.append(actions.preload(ModelName("default", "m"), "n"))


def test_an_autoscaler_may_preload() -> None:
    preloader = Preloader()
    plan = cluster({})
    [row] = records(Simulation(plan, trace([(3.5, "m")]), autoscaler=preloader))
    assert preloader.begun[:3] == [True, False, False]
    assert row["start"] == "warm"


def test_a_run_that_is_stopped_has_what_was_answered_by_then() -> None:
    plan = cluster({"pods": [{"slots": 8}]}, {"at": {"n": "device"}})
    rows = [(0.5 * n, "m") for n in range(1000)]
    whole = run(plan, rows)
    stopped = Simulation(plan, trace(rows), COLOCATION)
    stopped.is_stopping = lambda: stopped.events.now_s > 200
    found = records(stopped)
    assert stopped.was_stopped
    assert 400 <= len(found) < 500
    assert found == whole[: len(found)]
    assert stopped.summary.requests == len(found)
    assert stopped.summary.wasted_memory_byte_s > 0


def test_a_trace_that_breaks_off_leaves_what_was_answered_by_then() -> None:
    plan = cluster({"pods": [{"slots": 8}]}, {"at": {"n": "device"}})
    good = trace([(0.5 * n, "m") for n in range(100)])

    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield from good
        raise InvalidTrace("t.csv", 102, "at_s must be a number")

    simulation = Simulation(plan, breaks_off(), COLOCATION)
    found: list[pa.RecordBatch] = []
    with pytest.raises(InvalidTrace):
        found.extend(simulation)
    answered = sum(batch.num_rows for batch in found)
    assert answered == simulation.summary.requests >= 98
    assert simulation.summary.wasted_memory_byte_s > 0


def test_requests_have_the_names_that_a_live_run_gives_them() -> None:
    rows: list[Row] = [(0.0, "m"), (1.0, "unheard-of"), (2.0, "m")]
    [live] = worker_share(trace(rows), worker=0, workers=1, duration_s=None)
    named = run(cluster({}), rows, seed=7)
    assert [row["request_id"] for row in named] == [f"7-{each.row}" for each in live]
