"""`load run` against a real gateway with pods of the pod program."""

import json

import pytest
from pyarrow import parquet

from load.schema import RECORD_SCHEMA
from tests.gateway.gateway_harness import GatewayHarness
from tests.load.generator.conftest import LoadRun, WriteTrace


@pytest.mark.slow
def test_records_every_request_with_the_headers_of_the_gateway(
    load_run: LoadRun, harness: GatewayHarness, write_trace: WriteTrace
) -> None:
    warm, cold = harness.declare(), harness.declare()
    harness.start_pods("pod-a", warm=warm, slots=8)
    trace = write_trace([warm.name.name, cold.name.name], count=60, gap_s=0.005, deadline_s=20)
    flags = ("--policy", "colocation", "--processes", "2", "--json")
    ran = load_run(trace, harness.gateway.url, *flags)
    assert ran.status == 0, ran.err
    table = parquet.read_table(load_run.output)
    assert table.schema.equals(RECORD_SCHEMA)
    rows = table.to_pylist()
    assert sorted(row["request_id"] for row in rows) == sorted(f"0-{n}" for n in range(60))
    assert {row["status"] for row in rows} == {200}, [row["error"] for row in rows]
    assert {row["policy"] for row in rows} == {"colocation"}
    assert {row["entry_pod"] for row in rows} == {row["predict_pod"] for row in rows} == {"pod-a"}
    assert all(row["infer_ms"] == 2.0 and row["queue_ms"] is not None for row in rows)
    assert all(
        row["scheduled_s"] <= row["sent_s"] <= row["first_byte_s"] <= row["finished_s"]
        for row in rows
    )
    starts: dict[str, set[str]] = {row["model"]: set() for row in rows}
    for row in rows:
        starts[row["model"]].add(row["start"])
    assert starts[warm.name.name] == {"warm"}
    assert "remote" in starts[cold.name.name]
    assert ran.document["requests"] == ran.document["ok"] == 60
    about = json.loads(parquet.read_schema(load_run.output).metadata[b"pilotlight.run"])
    assert about["interrupted"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "output_size", "path"),
    [
        pytest.param("v2", 0, "/v2/models/{segment}/infer", id="V2"),
        pytest.param("openai", 5, "/serving/{segment}/openai/v1/completions", id="completions"),
        pytest.param("openai", 0, "/serving/{segment}/openai/v1/embeddings", id="embeddings"),
    ],
)
def test_other_protocols_reach_pods_by_their_own_paths(
    load_run: LoadRun,
    harness: GatewayHarness,
    write_trace: WriteTrace,
    protocol: str,
    output_size: int,
    path: str,
) -> None:
    spec = harness.declare(namespace="team")
    pods = harness.start_pods("pod-a", warm=spec, slots=8)
    trace = write_trace(
        [spec.name.name], count=20, gap_s=0.005, tenant="team", output_size=output_size
    )
    rows = load_run.records(trace, harness.gateway.url, "--protocol", protocol)
    columns = ("status", "error", "tenant", "entry_pod", "start", "infer_ms")
    assert {tuple(row[each] for each in columns) for row in rows} == {
        (200, None, "team", "pod-a", "warm", 2.0)
    }
    assert pods.counts("pod-a")["asked"] == len(rows) == 20
    assert pods.counts("pod-a")["paths"] == [path.format(segment=spec.name.path_segment)]


@pytest.mark.slow
def test_unknown_models_are_reported_with_their_first_arrival(
    load_run: LoadRun, harness: GatewayHarness, write_trace: WriteTrace
) -> None:
    known = harness.declare()
    harness.start_pods("pod-a", warm=known)
    trace = write_trace([known.name.name, "nobody", "nothing"], count=9, gap_s=0.01)
    ran = load_run(trace, harness.gateway.url)
    assert ran.status == 0, ran.err
    [note] = ran.err.splitlines()
    assert note == (
        f"{trace}: 2 of 3 models do not exist at {harness.gateway.url}: "
        "default/nobody (first in arrival 2, at 0.01 s), "
        "default/nothing (first in arrival 3, at 0.02 s)"
    )
    rows = parquet.read_table(load_run.output).to_pylist()
    statuses = {row["model"]: row["status"] for row in rows}
    assert statuses == {known.name.name: 200, "nobody": 404, "nothing": 404}
