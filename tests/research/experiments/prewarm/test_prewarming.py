"""Prewarming on a small trace, and the comparison at equal memory."""

from pathlib import Path

import numpy as np
import pytest

from autoscaler.forecasting.counts import ForecastInput
from autoscaler.forecasting.forecasts import fit_model, forecast_demand
from research.experiments.harness.experiment import ExperimentError, Settings
from research.experiments.prewarm import forecast_cache
from research.experiments.prewarm.prewarming import FILE, at_equal_memory, draw, run
from research.experiments.prewarm.runs import (
    BASELINES,
    PREDICTIVE,
    PrewarmResult,
    PrewarmTask,
    simulate,
)
from research.experiments.prewarm.scenario import ReplayWindow

MODELS = ("busy", "hourly", "rare")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> ReplayWindow:
    """Six hours counted, two hours simulated."""
    path = tmp_path_factory.mktemp("data") / FILE.removesuffix(".gz")
    rows = [(minute, "busy", 1 + minute % 2) for minute in range(0, 480, 3)]
    rows += [(minute, "hourly", 1) for minute in range(7, 480, 60)]
    rows += [(450, "rare", 1)]
    lines = [f"{minute},{model},{count}" for minute, model, count in sorted(rows)]
    path.write_text("\n".join(["minute,model,count", *lines]) + "\n", encoding="utf-8")
    return ReplayWindow(str(path), 6, 8)


@pytest.fixture(scope="module")
def forecasts(window: ReplayWindow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forecasts") / "forecasts.npz"
    forecast_cache.record(window, list(MODELS), path, lambda _done, _total: None)
    return path


def test_the_window_is_cut_from_the_file(window: ReplayWindow) -> None:
    assert window.models() == list(MODELS)
    assert (window.epoch_s, window.ticks) == (21_600.0, 120)
    assert sum(batch.num_rows for batch in window.trace()) == 60 + 2 + 1
    known = window.counts_before().history_of([f"default/{name}" for name in MODELS], 21_600.0)
    assert np.count_nonzero(known.minutes, axis=1).tolist() == [120, 6, 0]


def test_the_cache_has_the_forecasts_of_each_tick(window: ReplayWindow, forecasts: Path) -> None:
    names = tuple(f"default/{name}" for name in MODELS)
    counts = window.counts_before()
    known = counts.history_of(names, window.epoch_s)
    expected = forecast_demand(known, fit_model(known, names), forecast_cache.HORIZON)
    cache = forecast_cache.read(window, forecasts, with_history=True)
    assert cache.due(names, (), window.epoch_s) is None
    found = cache.forecast(ForecastInput(names, None, known, counts.recent_seconds()))
    np.testing.assert_allclose(found.p_minute, expected.p_minute, rtol=1e-5)
    np.testing.assert_allclose(found.forecast.quantiles, expected.forecast.quantiles, rtol=1e-5)


@pytest.mark.parametrize(
    ("policy", "little", "much"),
    [("keep-alive", 1, 60), ("greedy-dual", 1, 3), (PREDICTIVE, 50, 0.01)],
)
def test_more_memory_gives_fewer_cold_starts(
    window: ReplayWindow, forecasts: Path, policy: str, little: float, much: float
) -> None:
    less, more = (
        simulate(PrewarmTask(policy, value, window, MODELS, forecasts)) for value in (little, much)
    )
    assert less.requests == more.requests == 63
    assert less.failed == more.failed == 0
    assert less.cold > more.cold >= 1
    assert less.idle_model_h < more.idle_model_h <= 6.1


def test_a_longer_histogram_range_holds_models_for_longer(
    window: ReplayWindow, forecasts: Path
) -> None:
    """`busy` and `hourly` have enough history; `rare` is held for the range."""
    less, more = (
        simulate(PrewarmTask("hybrid-histogram", value, window, MODELS, forecasts))
        for value in (5, 200)
    )
    assert less.idle_model_h < more.idle_model_h
    assert less.preloads > 0


def _result(policy: str, idle: float, cold: int, p75: float) -> PrewarmResult:
    return PrewarmResult(policy, 1.0, 100, cold, p75, idle, 0, 0)


def test_baselines_are_interpolated_at_the_memory_of_predictive() -> None:
    results = [
        _result("keep-alive", 10.0, 40, 0.8),
        _result("keep-alive", 1000.0, 20, 0.4),
        _result("greedy-dual", 200.0, 30, 0.9),
        _result("greedy-dual", 400.0, 10, 0.8),
        _result(PREDICTIVE, 100.0, 25, 0.3),
        _result(PREDICTIVE, 1.0, 90, 1.0),
    ]
    [found] = at_equal_memory(results)
    assert found.baselines_cold["keep-alive"] == pytest.approx(0.3)
    assert found.baselines_cold["greedy-dual"] is None
    assert found.is_fewer
    assert found.p75_ratio == pytest.approx(0.5)


def test_the_plot_is_written(tmp_path: Path) -> None:
    results = [
        _result(policy, 10.0 * at, 50 // at, 1 / at)
        for policy in (PREDICTIVE, *BASELINES)
        for at in (1, 2, 3)
    ]
    path = draw(results, tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"PILOTLIGHT_DATA must name its folder"):
        run(Settings(data=tmp_path))
