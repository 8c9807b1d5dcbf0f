"""`pilotlight simulate`: every combination is run, and mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from load.report.run_file import read_run
from load.schema import RECORD_SCHEMA
from pilotlight.commands.simulate import Plan, run_simulations
from pilotlight.errors import InvalidInput
from pilotlight.output import Output

CLUSTER = Path(__file__).parents[2] / "manifests/simulator/eight-pods.yaml"


@pytest.fixture
def arrivals(tmp_path: Path) -> str:
    rows = "".join(f"{0.5 * n},default,t5-0{n % 3},1,0,\n" for n in range(6))
    path = tmp_path / "arrivals.csv"
    path.write_text(f"at_s,tenant,model,input_size,output_size,deadline_s\n{rows}")
    return str(path)


def simulated(capsys: pytest.CaptureFixture[str], plan: Plan) -> Any:
    run_simulations(plan, Output(as_json=True))
    return json.loads(capsys.readouterr().out)


def test_runs_every_policy_with_every_value(
    capsys: pytest.CaptureFixture[str], arrivals: str, tmp_path: Path
) -> None:
    plan = Plan(CLUSTER, arrivals, "auto,own", "nodes.0.count=2,4", 3, tmp_path / "runs")
    found = simulated(capsys, plan)
    assert [(run["policy"], run["value"]) for run in found["runs"]] == [
        ("auto", 2), ("own", 2), ("auto", 4), ("own", 4),
    ]  # fmt: skip
    assert {run["requests"] for run in found["runs"]} == {6}
    assert found["simulated"]
    table = pq.read_table(tmp_path / "runs" / "auto-4.parquet")
    assert table.num_rows == 6
    assert table.schema.names == RECORD_SCHEMA.names
    about = read_run(tmp_path / "runs" / "auto-4.parquet", "run").about
    [row] = [run for run in found["runs"] if (run["policy"], run["value"]) == ("auto", 4)]
    assert about["kind"] == "simulated"
    assert about["wasted_memory_byte_s"] == row["wasted_memory_byte_s"] > 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policies": "best"}, "--policy must be among"),
        ({"sweep": "nodes"}, "--sweep must be KEY"),
        ({"trace": "no-such.csv"}, "no-such.csv"),
        ({"cluster": Path("no-such.yaml")}, "no-such.yaml: cannot be read"),
    ],
)
def test_mistakes_are_told(arrivals: str, changes: dict[str, Any], says: str) -> None:
    fields = {"cluster": CLUSTER, "trace": arrivals, "policies": "auto", "sweep": None}
    with pytest.raises(InvalidInput, match=says):
        run_simulations(Plan(**{**fields, **changes}, seed=0, out=None), Output(as_json=True))
