"""The live parts of experiments, on real platforms."""

import json
from pathlib import Path

import pytest

from pilotlight.output import Output
from pilotlight.state_dir import StateDir
from research.experiments.elastic.spike_scenario import SpikeScenario
from research.experiments.harness.experiment import Settings
from research.experiments.harness.running import run_experiment
from research.experiments.liu.simple import EXPERIMENT
from research.live.live_platform import LocalLivePlatform


def test_the_simple_workload_runs_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = StateDir(tmp_path / "home")
    home.root.mkdir()
    if (made := StateDir.default().objects).is_dir():  # the sample models take 15 s to make
        home.objects.symlink_to(made)
    live = LocalLivePlatform(home, Output(as_json=True))
    settings = Settings(seeds=(1,), is_quick=True, live=live)
    run_experiment(EXPERIMENT, settings, Output(as_json=True), out=tmp_path)
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    live_ones = {row["policy"]: row for row in rows if row["model"] == "t5-small"}
    assert live_ones["colocation"]["cold starts: live"] == "1"
    assert int(live_ones["random"]["cold starts: live"]) > 1  # which pods is the seed's choice
    assert all(row["total s: live"] > 0 for row in live_ones.values())
    kept = (tmp_path / "liu-simple" / "runs.jsonl").read_text().splitlines()
    [summary] = [row for row in map(json.loads, kept) if row["what"] == "live: simple"]
    assert {run["policy"] for run in summary["result"]} == set(live_ones)


@pytest.fixture
def live(tmp_path: Path) -> LocalLivePlatform:
    home = StateDir(tmp_path / "home")
    home.root.mkdir()
    return LocalLivePlatform(home, Output(as_json=True))


def test_a_burst_runs_live_from_no_pods(live: LocalLivePlatform) -> None:
    runs = live.burst(4, pods=2, model="tiny-t5")
    assert [each.is_known for each in runs] in ([False], [False, True])
    for each in runs:
        assert len(each.took_s) == 4
        assert each.first_pod_s < each.took_s[0]
        assert each.loads >= 4
        assert 1 <= each.pods <= 2


def test_a_spike_runs_live(live: LocalLivePlatform) -> None:
    scenario = SpikeScenario(
        base_rps=1.0,
        times=4.0,
        infer_s=0.3,
        first_pods=1,
        most_pods=2,
        spike_at_s=4.0,
        spike_s=6.0,
        after_s=1.0,
    )
    found = live.spike(scenario, seed=1)
    assert found.failed == 0
    assert found.worst_p99_s >= scenario.infer_s
    assert 1 <= found.most_pods <= 2
    assert len(found.p99_s) == scenario.length_s
