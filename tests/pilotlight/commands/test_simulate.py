"""`pilotlight simulate`: all combinations, interrupted runs, invalid input."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from load.report.run_file import read_run
from load.report.summary import summarise
from load.schema import RECORD_SCHEMA
from load.simulator.runs import parquet_writer
from pilotlight.commands.simulation_runs import SimulationPlan, run_simulations
from pilotlight.errors import InvalidInput
from pilotlight.output import Output
from tests import servers
from tests.pilotlight.conftest import Cli

CLUSTER = servers.REPOSITORY / "manifests/simulator/eight-pods.yaml"


@pytest.fixture
def arrivals(tmp_path: Path) -> str:
    rows = "".join(f"{0.5 * n},default,t5-0{n % 3},1,0,\n" for n in range(6))
    path = tmp_path / "arrivals.csv"
    path.write_text(f"at_s,tenant,model,input_size,output_size,deadline_s\n{rows}")
    return str(path)


def simulated(capsys: pytest.CaptureFixture[str], plan: SimulationPlan) -> Any:
    run_simulations(plan, Output(as_json=True))
    return json.loads(capsys.readouterr().out)


def test_runs_every_policy(
    capsys: pytest.CaptureFixture[str], arrivals: str, tmp_path: Path
) -> None:
    plan = SimulationPlan(CLUSTER, arrivals, "auto,own,auto", 3, tmp_path / "runs")
    found = simulated(capsys, plan)
    assert [run["policy"] for run in found["runs"]] == ["auto", "own"]
    assert {run["requests"] for run in found["runs"]} == {6}
    assert found["simulated"]
    table = pq.read_table(tmp_path / "runs" / "auto.parquet")
    assert table.num_rows == 6
    assert table.schema.names == RECORD_SCHEMA.names
    about = read_run(tmp_path / "runs" / "auto.parquet", "run").metadata
    [row] = [run for run in found["runs"] if run["policy"] == "auto"]
    assert about["kind"] == "simulated"
    assert about["wasted_memory_byte_s"] == row["wasted_memory_byte_s"] > 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"policies": "best"}, "--policy must be among"),
        ({"trace": "no-such.csv"}, "no-such.csv"),
        ({"cluster": Path("no-such.yaml")}, "no-such.yaml: cannot be read"),
    ],
)
def test_invalid_flags_are_reported(arrivals: str, changes: dict[str, Any], expected: str) -> None:
    fields = {"cluster": CLUSTER, "trace": arrivals, "policies": "auto"}
    with pytest.raises(InvalidInput, match=expected):
        run_simulations(
            SimulationPlan(**{**fields, **changes}, seed=0, out=None), Output(as_json=True)
        )


def poisson(seconds: int) -> str:
    models = "/".join(f"t5-{number:02d}" for number in range(12))
    return f"poisson:rate=30,duration={seconds}s,tenant=default,names={models}"


@pytest.mark.slow
def test_one_and_two_processes_write_equal_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        plan = SimulationPlan(CLUSTER, poisson(10), "auto,random", 3, out, processes)
        runs = simulated(capsys, plan)["runs"]
        files = [pq.read_table(Path(run.pop("output"))).to_pylist() for run in runs]
        found.append((runs, files))
    assert found[0] == found[1]
    assert [run["run"] for run in found[0][0]] == ["auto", "random"]


def test_the_summary_equals_that_of_a_live_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = f"{poisson(20)}|deadline=3s"
    [row] = simulated(capsys, SimulationPlan(CLUSTER, trace, "auto", 3, tmp_path))["runs"]
    again = summarise(read_run(tmp_path / "auto.parquet", "auto"))
    assert again.keys() <= row.keys()
    summary = {key: row[key] for key in again}
    summary["latency_s"].pop("mean")
    table = pq.read_table(tmp_path / "auto.parquet").to_pandas()
    table = table[table["status"] == 200]
    latency_s = table["finished_s"] - table["scheduled_s"]
    again["latency_s"] |= quantiles(latency_s)  # without interpolation
    for key in ("model", "policy"):
        for name, each in again[f"by_{key}"].items():
            each["latency_s"] |= quantiles(latency_s[table[key] == name])
    assert 0 < summary["deadline_misses"] < summary["requests"]
    assert_close(summary, {key: again[key] for key in summary})


def quantiles(values: Any) -> dict[str, float]:
    return {
        f"p{each}": float(np.percentile(values, each, method="inverted_cdf"))
        for each in (50, 90, 95, 99)
    }


def assert_close(one: Any, other: Any) -> None:
    """Numbers within 1 %, other values equal, in the same order."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key, value in one.items():
            assert_close(value, other[key])
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=0.01)
    else:
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "processes", "whole"), [(signal.SIGTERM, 1, 1), (signal.SIGINT, 2, 0)]
)
def test_results_before_a_signal_are_kept(
    tmp_path: Path, number: signal.Signals, processes: int, whole: int
) -> None:
    out = tmp_path / "runs"
    command = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pilotlight",
            "simulate",
            "--cluster",
            str(CLUSTER),
            "--trace",
            poisson(900),
            "--policy",
            "random,colocation,auto,own",
            "--out",
            str(out),
            "--processes",
            str(processes),
            "--json",
        ],
        cwd=servers.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def is_far_enough() -> bool:
        under_way = [path for path in out.glob("*.unfinished") if path.stat().st_size > 100_000]
        return bool(under_way) and len(list(out.glob("*.parquet"))) == whole

    servers.wait_until(is_far_enough, what="enough runs have ended and another has begun")
    os.killpg(command.pid, number)  # with its workers, like Ctrl-C in a terminal
    stdout, err = command.communicate(timeout=240)
    assert command.returncode == 128 + number, err
    assert "Traceback" not in err
    found = json.loads(stdout)
    assert found["interrupted"]
    assert (
        f"interrupted: {whole} of 4 runs are complete; {out} holds the requests up to then" in err
    )
    rows = found["runs"]
    cut = len(rows) - whole  # a run that has just begun may have no records
    assert [row["interrupted"] for row in rows] == [False] * whole + [True] * cut
    assert 1 <= cut <= processes
    for row in rows:
        kept = read_run(Path(row["output"]), row["run"])
        assert kept.was_interrupted == row["interrupted"]
        assert kept.metadata["kind"] == "simulated"
        assert kept.requests == row["requests"] > 0
    assert {path.name for path in out.iterdir()} == {Path(row["output"]).name for row in rows}


def long_trace(tmp_path: Path, *, bad: str) -> Path:
    """A trace that is read in several blocks, with the row `bad` in the last one."""
    note = "x" * 500
    rows = [f"{0.1 * row:.1f},t5-0{row % 3},{note}" for row in range(5000)]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(["at_s,model,note", *rows, bad, ""]))
    return path


def test_results_before_an_invalid_row_are_kept(cli: Cli, tmp_path: Path) -> None:
    trace, out = long_trace(tmp_path, bad="soon,t5-00,"), tmp_path / "runs"
    ran = cli(
        "simulate",
        "--cluster",
        str(CLUSTER),
        "--trace",
        str(trace),
        "--policy",
        "auto,random",
        "--out",
        str(out),
        "--processes",
        "1",
        "--json",
    )
    assert ran.status == 2
    assert f"{trace}, row 5002: at_s must be" in ran.err
    assert f"0 of 2 runs are complete; {out} holds the requests up to then" in ran.err
    found = ran.document
    assert found["error"] == "invalid input; earlier results are kept"
    assert len(found["problems"]) == 1
    assert found["interrupted"]
    for row in found["runs"]:
        kept = read_run(Path(row["output"]), row["run"])
        assert kept.was_interrupted
        assert 1000 < kept.requests == row["requests"] <= 5000
    assert [row["run"] for row in found["runs"]] == ["auto", "random"]


@pytest.mark.parametrize("flags", [[], ["--allow-unknown"]])
def test_an_invalid_first_row_leaves_no_file(cli: Cli, tmp_path: Path, flags: list[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("at_s,model\nsoon,t5-00\n")
    ran = cli(
        "simulate",
        "--cluster",
        str(CLUSTER),
        "--trace",
        str(trace),
        "--out",
        str(tmp_path / "runs"),
        "--json",
        *flags,
    )
    assert ran.status == 2
    assert f"{trace}, row 2: at_s must be" in ran.document["problems"][0]
    assert ran.document.get("runs", []) == []
    assert list(tmp_path.rglob("*.parquet*")) == []


def test_files_are_replaced_only_with_overwrite(cli: Cli, arrivals: str, tmp_path: Path) -> None:
    asked = ["simulate", "--cluster", str(CLUSTER), "--trace", arrivals, "--out", str(tmp_path)]
    assert cli(*asked, "--seed", "1").status == 0
    before = (tmp_path / "own.parquet").read_bytes()
    again = cli(*asked, "--seed", "2")
    assert again.status == 2
    assert f"--out: there is {tmp_path / 'own.parquet'} already; name another, or" in again.err
    assert (tmp_path / "own.parquet").read_bytes() == before
    assert cli(*asked, "--seed", "2", "--overwrite").status == 0
    assert read_run(tmp_path / "own.parquet", "own").metadata["seed"] == 2


def test_a_trace_is_not_replaced_by_its_records(cli: Cli, arrivals: str, tmp_path: Path) -> None:
    trace = Path(arrivals).rename(tmp_path / "own.parquet")
    ran = cli(
        "simulate",
        "--cluster",
        str(CLUSTER),
        "--trace",
        str(trace),
        "--out",
        str(tmp_path),
        "--overwrite",
    )
    assert ran.status == 2
    assert f"--out: {trace} is a file of the trace; name another" in ran.err
    assert trace.read_text().startswith("at_s,")


def test_an_unwritable_folder_is_reported(cli: Cli, arrivals: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "runs"
    ran = cli("simulate", "--cluster", str(CLUSTER), "--trace", arrivals, "--out", str(out))
    assert ran.status == 2
    assert f"error: --out: cannot write {out}: " in ran.err


def test_a_full_disk_is_reported(cli: Cli, arrivals: str, tmp_path: Path) -> None:
    (tmp_path / "own.parquet.unfinished").symlink_to("/dev/full")
    ran = cli(
        "simulate", "--cluster", str(CLUSTER), "--trace", arrivals, "--out", str(tmp_path), "--json"
    )
    assert ran.status == 1
    assert f"--out: cannot write {tmp_path / 'own.parquet'}: " in ran.err
    assert ran.document["interrupted"]
    assert list(tmp_path.glob("own*")) == []


def test_models_that_the_cluster_lacks_are_rejected(cli: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    rows = "".join(f"{n},{name}\n" for n, name in enumerate(["t5-00", "t5-01", "b", "a", "b"]))
    trace.write_text("at_s,model\n" + rows)
    asked = ["simulate", "--cluster", str(CLUSTER), "--trace", str(trace), "--json"]
    ran = cli(*asked, "--out", str(tmp_path / "runs"))
    assert ran.status == 2
    [problem] = ran.document["problems"]
    assert problem.startswith("arrival 3 (at 2 s) is for default/b, which is not")
    assert f"2 of the trace's models are not declared in {CLUSTER}: default/b, default/a" in problem
    assert "--allow-unknown" in problem
    assert not (tmp_path / "runs").exists()
    [row] = cli(*asked, "--allow-unknown").document["runs"]
    assert row["by_status"] == {"200": 2, "404": 3}


def test_a_model_set_by_a_filter_is_rejected_by_its_arrival(cli: Cli, arrivals: str) -> None:
    ran = cli("simulate", "--cluster", str(CLUSTER), "--trace", f"{arrivals}|model=x")
    assert ran.status == 2
    assert "error: arrival 1 (at 0 s) is for default/x" in ran.err


def test_two_runs_cannot_write_the_same_file(cli: Cli, arrivals: str, tmp_path: Path) -> None:
    asked = ["simulate", "--cluster", str(CLUSTER), "--trace", arrivals, "--out", str(tmp_path)]
    with parquet_writer(tmp_path / "own.parquet", lambda: {"run": "first"}):
        ran = cli(*asked)
    assert ran.status == 1
    assert f"--out: another run writes {tmp_path / 'own.parquet'}; name another folder" in ran.err
    metadata = pq.read_metadata(tmp_path / "own.parquet").metadata[b"pilotlight.run"]
    assert json.loads(metadata)["run"] == "first"
    assert list(tmp_path.glob("*.unfinished")) == []


@pytest.mark.parametrize("flags", [[], ["--allow-unknown"]])
def test_calendar_times_are_rejected(cli: Cli, tmp_path: Path, flags: list[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("at_s,model\n1700000000,t5-00\n1700000001,t5-00\n")
    asked = ["simulate", "--cluster", str(CLUSTER), "--processes", "1", *flags]
    ran = cli(*asked, "--trace", str(trace))
    assert ran.status == 2
    assert "an arrival at 1700000001 s, 19,676 days after the trace's start; 366 days" in ran.err
    assert cli(*asked, "--trace", f"{trace}|slice=1700000000s:").status == 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--out", "/dev/null"], "cannot write /dev/null: it must be a folder"),
        (["--out", "~no-such-user/runs"], "--out: the user of ~no-such-user/runs does not exist"),
    ],
)
def test_impossible_values_are_reported(
    cli: Cli, arrivals: str, flags: list[str], expected: str
) -> None:
    ran = cli("simulate", "--cluster", str(CLUSTER), "--trace", arrivals, *flags)
    assert ran.status == 2
    assert expected in ran.err


def test_a_folder_at_the_path_of_records_is_reported(
    cli: Cli, arrivals: str, tmp_path: Path
) -> None:
    (tmp_path / "own.parquet.unfinished").mkdir()
    ran = cli("simulate", "--cluster", str(CLUSTER), "--trace", arrivals, "--out", str(tmp_path))
    assert ran.status == 1
    assert f"error: --out: cannot write {tmp_path / 'own.parquet'}: " in ran.err


def test_a_run_is_simulated_on_its_own_cluster(cli: Cli, tmp_path: Path) -> None:
    """A run that was itself simulated is met, as exactly as its percentiles are known."""
    common = ("--processes", "1", "--json")
    trace = "poisson:rate=5,duration=40s,names=t5-00/t5-01"
    flags = ("--cluster", str(CLUSTER), "--trace", trace, "--policy", "colocation")
    cli("simulate", *flags, "--out", str(tmp_path), *common)
    run = tmp_path / "colocation.parquet"
    missing = cli("simulate", "--like", str(run), *common)
    assert missing.status == 1
    assert f"there is no {tmp_path}/colocation.cluster.yaml" in missing.err
    (tmp_path / "colocation.cluster.yaml").write_text(CLUSTER.read_text())
    again = cli("simulate", "--like", str(run), *common).document
    assert [each["policy"] for each in again["runs"]] == ["colocation"]
    assert again["live"]["requests"] == again["runs"][0]["requests"] > 100
    for share in ("p50", "p95"):
        live_s, simulated_s = (
            again["live"]["latency_s"][share],
            again["runs"][0]["latency_s"][share],
        )
        assert simulated_s == pytest.approx(live_s, rel=0.01)
    shown = cli("simulate", "--like", str(run), "--policy", "auto,colocation", "--processes", "1")
    assert "live: colocation.parquet" in shown.out
    refused = cli("simulate", "--like", str(run), "--home", str(run / "home"), *common)
    assert refused.status == 2
    assert f"--home: {run}/home/like-trace.csv cannot be written" in refused.err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--trace", "poisson:rate=1,duration=2s,names=a"), "give --cluster FILE or --like RUN"),
        (("--cluster", str(CLUSTER)), "--trace is missing"),
        (("--like", "none.parquet"), "none.parquet: no such file"),
        (
            ("--like", "none.parquet", "--cluster", str(CLUSTER)),
            "give --cluster FILE or --like RUN",
        ),
    ],
)
def test_what_is_simulated_is_named_once(cli: Cli, flags: tuple[str, ...], expected: str) -> None:
    ran = cli("simulate", *flags)
    assert ran.status == 2
    assert expected in ran.err
