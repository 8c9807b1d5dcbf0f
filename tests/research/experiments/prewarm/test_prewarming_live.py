"""The live slice of prewarming: its simulation, and the whole of it as a slow test."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.forecast import DemandForecaster
from autoscaler.forecasting.counts import Counts, CountsParams, ForecastInput
from load.report.run_file import read_run
from pilotlight.output import Output
from pilotlight.state_dir import StateDir
from registry.domain.model import Tier
from research.experiments.harness.experiment import ExperimentError, Settings
from research.experiments.harness.running import run_experiment
from research.experiments.prewarm.live_slice import (
    PACE,
    MeasuredTimes,
    MinuteForecaster,
    TraceSlice,
    live_value,
    measured_times,
    simulate_slice,
)
from research.experiments.prewarm.prewarming import FILE
from research.experiments.prewarm.prewarming_live import EXPERIMENT, run
from research.experiments.prewarm.scenario import MODEL_BYTES
from research.live.live_platform import LocalLivePlatform
from tests.load.report.runs import write_run

FIRST_H = 360
TIMES = MeasuredTimes(dict.fromkeys((Tier.REMOTE, Tier.DISK, Tier.HOST), 6.0), 0.0, 0.5, 0.0)


def data_folder(folder: Path, rows: list[tuple[int, str]]) -> Path:
    """The path of a trace with one request per row, at minutes from the slice's start."""
    lines = [f"{60 * FIRST_H + minute},{model},1" for minute, model in sorted(rows)]
    (folder / FILE.removesuffix(".gz")).write_text("minute,model,count\n" + "\n".join(lines) + "\n")
    return folder / FILE.removesuffix(".gz")


def test_the_slice_is_compressed_and_its_simulation_is_not(tmp_path: Path) -> None:
    file = data_folder(tmp_path, [(0, "m"), (2, "n"), (40, "m")])
    trace_slice = TraceSlice(str(file), FIRST_H, FIRST_H + 1)
    assert trace_slice.models() == ["m", "n"]
    assert trace_slice.compressed == f"{trace_slice.real_time}|speed={PACE:g}"
    found = simulate_slice(trace_slice, "keep-alive", 10.0, TIMES)
    assert (found.requests, found.cold, found.failed) == (3, 3, 0)
    idle_min = 60 * (found.idle_model_h or 0)
    assert 2 * 10 <= idle_min <= 2 * 12  # the run ends with the last answer; ticks are minutes
    longer = simulate_slice(trace_slice, "keep-alive", 60.0, TIMES)
    assert longer.cold == 2
    assert (longer.idle_model_h or 0) > 3 * (found.idle_model_h or 0)


def test_the_simulation_has_no_burst_intervals_as_its_live_run() -> None:
    now_s, name = 3600.0, "default/m"
    counts = Counts(CountsParams(models=1))
    counts.advance(now_s)
    counts.add_model(name)
    times_s = [now_s - 20 * burst for burst in range(1, 13)]
    counts.add([name] * len(times_s), times_s, [1] * len(times_s))
    rows = counts.rows_of((name,))
    history, seconds = counts.history(now_s, rows), counts.recent_seconds(rows)
    inputs = ForecastInput((name,), None, history, seconds)
    without = replace(inputs, seconds=np.zeros_like(seconds))
    live = DemandForecaster(is_partial=False).forecast(without).p_minute
    with_bursts = DemandForecaster(is_partial=False).forecast(inputs).p_minute
    forecaster = MinuteForecaster(DemandForecaster(is_partial=False))
    assert forecaster.forecast(inputs).p_minute == pytest.approx(live)
    assert with_bursts > live


def test_the_simulation_uses_the_medians_of_live_records(tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "run.parquet",
        4,
        start=["disk", "disk", "disk", "warm"],
        load_ms=[40.0, 50.0, 600.0, None],
        infer_ms=[10.0] * 4,
    )
    times = measured_times([read_run(path, "run")])
    assert times.load_s[Tier.DISK] == pytest.approx(0.05 * PACE)
    assert times.infer_s == pytest.approx(0.01 * PACE)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("predictive", 80.0), ("greedy-dual", 0.2), ("keep-alive", 2.0), ("hybrid-histogram", 2.0)],
)
def test_parameters_in_bytes_are_scaled_to_the_size_of_models(policy: str, expected: float) -> None:
    assert live_value(policy, 2.0, MODEL_BYTES // 40) == pytest.approx(expected)


def test_without_a_platform_it_is_refused() -> None:
    with pytest.raises(ExperimentError, match="--live"):
        run(Settings())


def test_the_slice_runs_live_under_every_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = data_folder(tmp_path, [(0, "m0001"), (2, "m0002"), (3, "m0001"), (14, "m0001")])
    file.rename(tmp_path / FILE)
    monkeypatch.setenv("PILOTLIGHT_DATA", str(tmp_path))
    home = StateDir(tmp_path / "home")
    home.root.mkdir()
    if (made := StateDir.default().objects).is_dir():  # the sample models take 15 s to make
        home.objects.symlink_to(made)
    live = LocalLivePlatform(home, Output(as_json=True))
    settings = Settings(is_quick=True, live=live)
    run_experiment(EXPERIMENT, settings, Output(as_json=True), out=tmp_path)
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    assert len(rows) == 4
    for row in rows:
        assert (row["requests"], row["failed: live"]) == (4, 0), row
        assert row["idle model-hours: live"] > 0
    kept = {row["policy"]: row for row in rows}["keep-alive"]
    assert kept["cold starts: live"] >= 2
    assert kept["cold starts: simulated"] >= 2
