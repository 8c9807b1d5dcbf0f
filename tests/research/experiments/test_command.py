"""`pilotlight experiment`: list, run by name, print tables or JSON, keep results."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.output import Output
from research.experiments.command import EXPERIMENTS
from research.experiments.harness.experiment import Settings
from research.experiments.harness.running import run_experiment
from research.experiments.liu.wins import EXPERIMENT
from tests import servers
from tests.pilotlight.conftest import Cli

SETTINGS = Settings(seeds=(1,), is_quick=True)


def test_lists_the_experiments_of_installed_distributions(cli: Cli) -> None:
    listed = {each["name"]: each["description"] for each in cli("experiment", "--json").document}
    loaded = {name: EXPERIMENTS.load(name) for name in EXPERIMENTS}
    assert listed == {name: each.description for name, each in loaded.items()}
    assert all(name == each.name for name, each in loaded.items())
    assert "liu-wins" in listed


def test_every_experiment_has_a_page() -> None:
    pages = servers.REPOSITORY / "research/docs"
    assert [name for name in EXPERIMENTS if not (pages / f"{name}.md").is_file()] == []


@pytest.mark.slow
def test_json_contains_every_row_by_column(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_experiment(EXPERIMENT, SETTINGS, Output(as_json=True), out=tmp_path)
    found = json.loads(capsys.readouterr().out)
    rows = found["tables"][0]["rows"]
    assert {row["workload"] for row in rows} == {"6.4.1", "6.4.2", "6.4.3"}
    assert all(isinstance(row["simulated s"], float) for row in rows)


def test_tables_are_printed_and_kept_as_markdown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_experiment(EXPERIMENT, SETTINGS, Output(), out=tmp_path)
    assert "colocation-queueing" in capsys.readouterr().out
    kept = (tmp_path / "liu-wins" / "result.md").read_text()
    assert "| workload | policy |" in kept


def test_an_unknown_name_is_rejected(cli: Cli) -> None:
    ran = cli("experiment", "liu")
    assert ran.status == 2
    assert "NAME must be one of arena, burst, " in ran.err
    assert ", was 'liu'" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "processes"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_runs_completed_before_a_signal_are_kept(
    tmp_path: Path, number: signal.Signals, processes: int
) -> None:
    kept = tmp_path / "liu-grid" / "runs.jsonl"
    command = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pilotlight",
            "experiment",
            "liu-grid",
            "--simulated-only",
            "--out",
            str(tmp_path),
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
    servers.wait_until(
        lambda: kept.exists() and len(kept.read_bytes().splitlines()) >= 3,
        what="three runs have ended",
    )
    os.killpg(command.pid, number)  # with its workers, like Ctrl-C in a terminal
    stdout, err = command.communicate(timeout=240)
    assert command.returncode == 128 + number, err
    assert "Traceback" not in err
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) >= 3
    assert f"interrupted; {kept} holds the results of {len(rows)} runs" in err
    assert json.loads(stdout) == {"interrupted": True, "runs": len(rows), "kept": str(kept)}
    for row in rows:
        assert row["task"]["workload"] in {"pair", "stream"}
        assert set(row["result"]["mean_s"]) >= {"colocation", "auto"}
    assert not (tmp_path / "liu-grid" / "result.md").exists()


@pytest.mark.slow
def test_a_result_is_replaced_only_with_overwrite(cli: Cli, tmp_path: Path) -> None:
    asked = [
        "experiment",
        "liu-wins",
        "--quick",
        "--simulated-only",
        "--out",
        str(tmp_path),
        "--processes",
        "1",
    ]
    assert cli(*asked, "--seed", "1").status == 0
    table = tmp_path / "liu-wins" / "result.md"
    before = table.read_bytes()
    again = cli(*asked, "--seed", "2")
    assert again.status == 2
    assert f"--out: there is {table} already; name another, or --overwrite" in again.err
    assert table.read_bytes() == before
    assert cli(*asked, "--seed", "2", "--overwrite").status == 0
    assert "over seeds 2 to 2" in table.read_text()


def test_an_unwritable_folder_is_reported(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = cli("experiment", "liu-wins", "--quick", "--out", str(tmp_path / "file"))
    assert ran.status == 2
    assert f"error: --out: cannot write {tmp_path / 'file' / 'liu-wins'}: " in ran.err
