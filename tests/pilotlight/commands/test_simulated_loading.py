"""`pilotlight simulate --loading`: loading policies in simulated runs."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from load.report.run_file import read_run
from tests.pilotlight.conftest import Cli
from tests.plug_ins import install, path_of_plug_ins

CLUSTER = """
nodes:
  - name: node
    object_storage_rate: 50MB/s
    pods: [{memory: 250MB, slots: 2}]
models:
  - {name: m, count: 3, size: 100MB, load: {remote: 5s, disk: 2s}}
"""
"""A pod holds two of the three models."""

_HASTY = """
from autoscaler.policy import LoadingPolicy


def hasty():
    return LoadingPolicy("hasty", None, lambda view, state: 1 / 0)
"""


def _trace(folder: Path, *, periods: int) -> str:
    """Three models in turn, each with half a minute of requests every ten minutes."""
    rows = [
        f"{600 * period + 200 * number + 5 * at},m-{number}\n"
        for period in range(periods)
        for number in range(3)
        for at in range(6)
    ]
    path = folder / "periods.csv"
    path.write_text("at_s,model\n" + "".join(rows))
    return str(path)


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return [
        "simulate",
        "--cluster",
        str(tmp_path / "cluster.yaml"),
        "--trace",
        _trace(tmp_path, periods=9),
        "--json",
        "--tick",
        "30",
        "--processes",
        "1",
    ]


def test_a_plug_in_that_raises_is_named(cli: Cli, asked: list[str], tmp_path: Path) -> None:
    install(tmp_path, "mine", "pilotlight.loading", {"hasty": "mine:hasty"}, _HASTY)
    with path_of_plug_ins(tmp_path):
        ran = cli(*asked, "--loading", "hasty", "--out", str(tmp_path / "runs"))
    assert ran.status == 1
    assert "loading policy hasty raised ZeroDivisionError: division by zero (mine.py, " in ran.err


def records(row: Any) -> list[Any]:
    return list(pq.read_table(row["output"]).to_pylist())


@pytest.mark.slow
def test_a_forecast_saves_cold_starts(cli: Cli, asked: list[str], tmp_path: Path) -> None:
    ran = cli(*asked, "--loading", "none,predictive,keep-alive", "--out", str(tmp_path / "runs"))
    none, ahead, kept = ran.document["runs"]
    assert [each["loading"] for each in (none, ahead, kept)] == ["none", "predictive", "keep-alive"]
    assert none["cold_starts"] == 9 * 3
    assert ahead["cold_starts"] <= none["cold_starts"] * 2 / 3
    assert none["actions"] == {}
    assert ahead["actions"]["load"]["forecast"] >= 10
    assert sum(ahead["loads"].values()) > ahead["cold_starts"]
    summary = read_run(tmp_path / "runs" / "own-predictive.parquet", "run").metadata
    for key in ("loading", "loading_value", "tick_s", "actions"):
        assert summary[key] == ahead[key]
    assert records(none) != records(ahead)


def test_a_loading_value_sets_the_policys_parameter(
    cli: Cli, asked: list[str], tmp_path: Path
) -> None:
    found = {}
    for minutes in ("1", "20"):
        ran = cli(
            *asked,
            "--loading",
            "none,keep-alive",
            "--loading-value",
            minutes,
            "--out",
            str(tmp_path),
        )
        [_, found[minutes]] = ran.document["runs"]
        (tmp_path / "own-none.parquet").unlink()
    assert found["1"]["run"] == "own-keep-alive-1"
    assert found["1"]["loading_value"] == 1.0
    assert found["1"]["wasted_memory_byte_s"] < 0.6 * found["20"]["wasted_memory_byte_s"]
    assert found["1"]["actions"]["demote"]["idle"] >= 24
    assert found["20"]["actions"] == {}


@pytest.mark.slow
def test_results_are_equal_in_any_number_of_processes(
    cli: Cli, asked: list[str], tmp_path: Path
) -> None:
    _trace(tmp_path, periods=2)
    asked += ["--loading", "predictive,round-robin", "--policy", "auto,random"]
    asked += ["--tick", "60", "--seed", "7"]
    found = []
    for processes in ("1", "2"):
        out = tmp_path / processes
        runs = cli(*asked, "--processes", processes, "--out", str(out)).document["runs"]
        found.append(([records(run) for run in runs], [{**run, "output": ""} for run in runs]))
    assert found[0] == found[1]
    assert [run["run"] for run in found[0][1]] == [
        "auto-predictive",
        "auto-round-robin",
        "random-predictive",
        "random-round-robin",
    ]


def test_the_table_has_a_column_for_loading_policies(cli: Cli, asked: list[str]) -> None:
    asked.remove("--json")
    table = cli(*asked, "--loading", "none,keep-alive").out.splitlines()
    assert table[1].split()[:3] == ["POLICY", "LOADING", "REQUESTS"]
    assert [line.split()[1] for line in table[2:]] == ["none", "keep-alive"]
    assert "LOADING" not in cli(*asked).out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(
            "--loading predictiv", "--loading must be among none, predictive, ", id="name"
        ),
        pytest.param("--loading predictive,", ", was ''", id="empty"),
        pytest.param(
            "--loading baseline --loading-value 3",
            "--loading-value must be left out with --loading baseline; allowed with predictive, ",
            id="no parameter",
        ),
        pytest.param("--loading-value 3", "the parameter of one policy: name one of", id="none"),
        pytest.param(
            "--loading predictive,keep-alive --loading-value 3",
            "alone or with none; it was given with predictive, keep-alive",
            id="two meanings",
        ),
        pytest.param(
            "--loading keep-alive --loading-value nan",
            "--loading-value must be a positive number, was nan",
            id="no number",
        ),
        pytest.param(
            "--loading hybrid-histogram --loading-value 0.5",
            "--loading-value must be whole minutes, at most 20,160, was 0.5",
            id="part of a minute",
        ),
        pytest.param(
            "--loading keep-alive --tick 0",
            "--tick must be 0.01 seconds at least, was 0",
            id="tick",
        ),
        pytest.param("--loading keep-alive --tick inf", "at least, was inf", id="no tick"),
    ],
)
def test_invalid_combinations_are_rejected(
    cli: Cli, asked: list[str], flags: str, expected: str
) -> None:
    ran = cli(*asked, *flags.split())
    assert ran.status == 2
    [problem] = json.loads(ran.out)["problems"]
    assert expected in problem
