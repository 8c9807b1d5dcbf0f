"""`pilotlight experiment`: listed, run by name, told as tables and as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from load.experiments.elastic.spike_scenario import SpikeScenario
from load.experiments.experiments import EXPERIMENTS
from pilotlight.commands.experiments.runs import ExperimentOptions, list_experiments, run_experiment
from pilotlight.errors import InvalidInput
from pilotlight.live_experiments.live_platform import LocalLivePlatform
from pilotlight.output import Output
from pilotlight.state_dir import StateDir
from tests import servers

if TYPE_CHECKING:
    from tests.pilotlight.conftest import Cli


def wish(tmp_path: Path, name: str = "liu-wins") -> ExperimentOptions:
    return ExperimentOptions(name, (1,), is_quick=True, out=tmp_path, processes=1, live=None)


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    list_experiments(Output(as_json=True))
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(EXPERIMENTS)


def test_every_experiment_has_a_page() -> None:
    pages = Path(__file__).parents[2] / "docs/experiments"
    assert [name for name in EXPERIMENTS if not (pages / f"{name}.md").is_file()] == []


def test_json_holds_every_row_by_its_columns(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_experiment(wish(tmp_path), Output(as_json=True))
    found = json.loads(capsys.readouterr().out)
    rows = found["tables"][0]["rows"]
    assert {row["workload"] for row in rows} == {"6.4.1", "6.4.2", "6.4.3"}
    assert all(isinstance(row["simulated s"], float) for row in rows)


def test_tables_are_printed_and_kept_as_markdown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_experiment(wish(tmp_path), Output())
    assert "colocation-queueing" in capsys.readouterr().out
    kept = (tmp_path / "liu-wins" / "result.md").read_text()
    assert "| workload | policy |" in kept


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"NAME must be one of liu-simple, .*, was 'liu'"):
        run_experiment(wish(tmp_path, "liu"), Output())


@pytest.mark.parametrize(("number", "processes"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_what_had_ended_before_a_signal_is_kept(
    tmp_path: Path, number: signal.Signals, processes: int
) -> None:
    kept = tmp_path / "liu-grid" / "runs.jsonl"
    command = subprocess.Popen(
        [sys.executable, "-m", "pilotlight", "experiment", "liu-grid", "--simulated-only",
         "--out", str(tmp_path), "--processes", str(processes), "--json"],
        cwd=servers.REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    servers.wait_until(
        lambda: kept.exists() and len(kept.read_bytes().splitlines()) >= 3, what="three ended"
    )
    os.killpg(command.pid, number)  # workers as well, as in a terminal
    told, said = command.communicate(timeout=240)
    assert command.returncode == 128 + number, said
    assert "Traceback" not in said
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) >= 3
    assert f"interrupted; {kept} holds the results of {len(rows)} runs" in said
    assert json.loads(told) == {"interrupted": True, "runs": len(rows), "kept": str(kept)}
    for row in rows:
        assert row["task"]["workload"] in {"pair", "stream"}
        assert set(row["result"]["mean_s"]) >= {"colocation", "auto"}
    assert not (tmp_path / "liu-grid" / "result.md").exists()


def test_a_result_is_replaced_only_where_that_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    asked = ["experiment", "liu-wins", "--quick", "--simulated-only", "--out", str(tmp_path),
             "--processes", "1"]  # fmt: skip
    assert cli(*asked, "--seed", "1").status == 0
    table = tmp_path / "liu-wins" / "result.md"
    before = table.read_bytes()
    again = cli(*asked, "--seed", "2")
    assert again.status == 2
    assert f"--out: there is {table} already; name another, or --overwrite" in again.err
    assert table.read_bytes() == before
    assert cli(*asked, "--seed", "2", "--overwrite").status == 0
    assert "over seeds 2 to 2" in table.read_text()


def test_a_folder_that_cannot_be_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = cli("experiment", "liu-wins", "--quick", "--out", str(tmp_path / "file"))
    assert ran.status == 2
    assert f"error: --out: cannot write {tmp_path / 'file' / 'liu-wins'}: " in ran.err


@pytest.mark.slow
def test_the_simple_workload_runs_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = StateDir(tmp_path / "home")
    home.root.mkdir()
    if (made := StateDir.default().objects).is_dir():  # the sample models take 15 s to make
        home.objects.symlink_to(made)
    live = LocalLivePlatform(home, Output(as_json=True))
    asked = ExperimentOptions(
        "liu-simple", (1,), is_quick=True, out=tmp_path, processes=1, live=live
    )
    run_experiment(asked, Output(as_json=True))
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    live_ones = {row["policy"]: row for row in rows if row["model"] == "t5-small"}
    assert live_ones["colocation"]["cold starts: live"] == "1"
    assert live_ones["random"]["total s: live"] > live_ones["colocation"]["total s: live"]
    kept = (tmp_path / "liu-simple" / "runs.jsonl").read_text().splitlines()
    [told] = [row for row in map(json.loads, kept) if row["what"] == "live: simple"]
    assert {run["policy"] for run in told["result"]} == set(live_ones)


@pytest.fixture
def live(tmp_path: Path) -> LocalLivePlatform:
    home = StateDir(tmp_path / "home")
    home.root.mkdir()
    return LocalLivePlatform(home, Output(as_json=True))


@pytest.mark.slow
def test_a_burst_runs_live_from_no_pods(live: LocalLivePlatform) -> None:
    runs = live.burst(4, pods=2, model="tiny-t5")
    assert [each.is_known for each in runs] in ([False], [False, True])
    for each in runs:
        assert len(each.took_s) == 4
        assert each.first_pod_s < each.took_s[0]
        assert each.loads >= 4
        assert 1 <= each.pods <= 2


@pytest.mark.slow
def test_a_spike_runs_live(live: LocalLivePlatform) -> None:
    scenario = SpikeScenario(
        base_rps=1.0, times=4.0, infer_s=0.3, first_pods=1, most_pods=2,
        spike_at_s=4.0, spike_s=6.0, after_s=1.0,
    )  # fmt: skip
    found = live.spike(scenario, seed=1)
    assert found.failed == 0
    assert found.worst_p99_s >= scenario.infer_s
    assert 1 <= found.most_pods <= 2
    assert len(found.p99_s) == scenario.length_s
