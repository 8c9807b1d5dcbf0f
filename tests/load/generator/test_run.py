"""`load run` against a real gateway with pods of the pod program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyarrow import parquet

from load.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway.conftest import Floor
    from tests.load.generator.conftest import WriteTrace
    from tests.pilotlight.conftest import Cli


def test_records_every_request_with_what_the_gateway_tells(
    cli: Cli, floor: Floor, write_trace: WriteTrace, tmp_path: Path
) -> None:
    warm, cold = floor.declare(), floor.declare()
    floor.pods("pod-a", warm=warm, slots=8)
    trace = write_trace([warm.name.name, cold.name.name], count=60, gap_s=0.005, deadline_s=20)
    output = tmp_path / "run.parquet"
    ran = cli(
        "load", "run", "--trace", trace, "--url", floor.gateway.url, "-o", str(output),
        "--policy", "colocation", "--processes", "2", "--json",
    )  # fmt: skip
    assert ran.status == 0, ran.err
    table = parquet.read_table(output)
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
    about = json.loads(parquet.read_schema(output).metadata[b"pilotlight.run"])
    assert about["interrupted"] is False
