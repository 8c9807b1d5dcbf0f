"""Simulated runs: determinism, record batches, memory, and ends before the end of the trace."""

import gc
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from load.errors import InvalidTrace, TraceError
from load.generator.trace_arrivals import worker_share
from load.schema import RECORD_SCHEMA
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy
from tests.load.simulator.small_cluster import COLOCATION, cluster, records, run, took_s
from tests.load.simulator.traces import Row, trace


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_equal_seeds_give_equal_records_with_a_row_per_request(policy: RoutingPolicy) -> None:
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


@pytest.mark.slow
def test_records_have_the_schema_and_come_in_batches() -> None:
    plan = cluster({}, {"infer": {1: "1us"}})
    rows = [(0.01 * n, "m") for n in range(20_000)]
    batches = list(Simulation(plan, trace(rows), COLOCATION))
    assert all(batch.schema.equals(RECORD_SCHEMA) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == len(rows)
    assert max(batch.num_rows for batch in batches) < 20_000


@pytest.mark.slow
def test_memory_does_not_grow_with_the_trace() -> None:
    plan = cluster({"count": 4, "pods": [{"slots": 4}]}, {"infer": {1: "2ms"}, "count": 8})
    batch = 1_000

    def arrivals() -> Iterator[pa.RecordBatch]:
        for first in range(0, 24 * batch, batch):
            rows = [(0.01 * (first + n), f"m-{n % 8}") for n in range(batch)]
            yield from trace(rows, deadline_s=2.0)

    gc.collect()
    blocks = []
    for piece in Simulation(plan, arrivals(), RoutingPolicy.AUTO):
        del piece
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[23] < 1.01 * blocks[3]  # a request that left one object would add 20,000


@pytest.mark.parametrize("policy", [RoutingPolicy.AUTO, RoutingPolicy.REMOTE_PROXY])
def test_requests_leave_no_reference_cycles(policy: RoutingPolicy) -> None:
    """Under load, with rejections, deadlines, evictions, a pod that dies and one that drains."""
    pods = [{"memory": "200MB", "slots": 2}, {"slots": 2, "kill": "2s"}, {"drain": "3s"}]
    plan = cluster({"pods": pods}, {"size": "20MB", "infer": {1: "20ms"}, "count": 16})
    rows = [(0.01 * number, f"m-{number % 16:02d}") for number in range(600)]
    run(plan, rows, policy, deadline_s=2.0)  # first imports may leave some
    gc.collect()
    gc.disable()
    try:
        simulation = Simulation(plan, trace(rows, deadline_s=2.0), policy)
        statuses = {row["status"] for row in records(simulation)}
        left = gc.collect()
    finally:
        gc.enable()
    assert {200, 504} <= statuses
    assert left < len(rows) / 10, "a cycle in every tenth request would leave as many"


def test_a_request_that_loses_two_pods_is_refused() -> None:
    pods = [{"kill": "2s"}, {"kill": "2500ms"}]
    plan = cluster({"pods": pods}, {"infer": {1: "1s"}, "at": {"n-0": "device", "n-1": "device"}})
    rows = run(plan, [(1.2, "m"), (1.2, "m")], RoutingPolicy.AUTO)
    assert any("pods were lost with this request" in (row["error"] or "") for row in rows), rows


def test_trace_with_descending_times_or_other_columns_is_refused() -> None:
    with pytest.raises(TraceError, match=r"goes back from 1\.0 s to 0\.5 s"):
        run(cluster({}), [(1.0, "m"), (0.5, "m")])
    with pytest.raises(TraceError, match="must have the columns"):
        list(Simulation(cluster({}), [pa.record_batch({"at": [1.0]})]))


def test_stopped_run_has_the_requests_finished_by_then() -> None:
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


def test_run_of_a_broken_trace_has_the_requests_finished_by_then() -> None:
    plan = cluster({"pods": [{"slots": 8}]}, {"at": {"n": "device"}})
    good = trace([(0.5 * n, "m") for n in range(100)])

    def broken() -> Iterator[pa.RecordBatch]:
        yield from good
        raise InvalidTrace("t.csv", 102, "at_s must be a number")

    simulation = Simulation(plan, broken(), COLOCATION)
    found: list[pa.RecordBatch] = []
    with pytest.raises(InvalidTrace):
        found.extend(simulation)
    answered = sum(batch.num_rows for batch in found)
    assert answered == simulation.summary.requests >= 98
    assert simulation.summary.wasted_memory_byte_s > 0


def test_request_ids_equal_those_of_a_live_run() -> None:
    rows: list[Row] = [(0.0, "m"), (1.0, "unknown"), (2.0, "m")]
    [live] = worker_share(trace(rows), worker=0, workers=1, duration_s=None)
    named = run(cluster({}), rows, seed=7)
    assert [row["request_id"] for row in named] == [f"7-{each.row}" for each in live]
