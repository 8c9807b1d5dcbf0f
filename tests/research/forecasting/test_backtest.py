"""The back-test: no look-ahead, the same history as `Counts`, correct scores."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from autoscaler.forecasting.counts import Counts
from autoscaler.forecasting.forecasts import Fit, fit
from autoscaler.forecasting.history import BadHorizon, Floats, Forecast, ForecastHorizon, History
from research.forecasting.backtest import BacktestParams, backtest, history_at, scores, tally
from research.forecasting.command import BadArrivalTrace, read_minutes
from research.forecasting.methods import METHODS
from tests.autoscaler.forecasting import streams

HORIZON = ForecastHorizon(windows_s=(60.0, 600.0, 3600.0), probabilities=(0.5, 0.9))
_DATA = os.environ.get("PILOTLIGHT_DATA")


@pytest.mark.parametrize("method", METHODS)
def test_forecasts_do_not_depend_on_the_future(method: str) -> None:
    """Two traces that differ after the origin only."""
    origin = 2 * streams.DAY + 333
    one = streams.poisson(0.3, models=6, minutes=3 * streams.DAY)
    other = one.copy()
    other[:, origin:] = streams.poisson(20.0, models=6, minutes=3 * streams.DAY - origin, seed=1)
    found = []
    for counts in (one, other):
        history = history_at(counts, origin)
        found.append(METHODS[method](history, fit(history), HORIZON))
    assert (found[0].mean == found[1].mean).all()
    assert (found[0].quantiles == found[1].quantiles).all()
    assert (found[0].p_arrival == found[1].p_arrival).all()


def test_the_back_test_does_not_look_ahead() -> None:
    change = 2 * streams.DAY
    one = streams.poisson(0.3, models=4, minutes=change + 400)
    other = one.copy()
    other[:, change:] = 50
    seen: list[list[Floats]] = []
    for counts in (one, other):
        kept: list[Floats] = []

        def noting(
            history: History, fitted: Fit, horizon: ForecastHorizon, kept: list[Floats] = kept
        ) -> Forecast:
            forecast = METHODS["typed"](history, fitted, horizon)
            kept.append(forecast.quantiles)
            return forecast

        params = BacktestParams(change - 200, change + 1, every_min=50, refit_every=2)
        backtest(counts, {"typed": noting}, HORIZON, params)
        seen.append(kept)
    assert len(seen[0]) == 5
    assert all((a == b).all() for a, b in zip(*seen, strict=True))


def test_perfect_forecasts_score_zero() -> None:
    seen = np.array([[3.0, 0.0], [1.0, 5.0]])
    perfect = Forecast(
        mean=seen, quantiles=np.repeat(seen[..., None], 2, 2), p_arrival=1.0 * (seen > 0)
    )
    total = tally(perfect, seen, (0.5, 0.9), np.array([True, True]))
    found = scores(total, 0, (0.5, 0.9))
    assert (found.mae, found.brier, found.pinball) == (0.0, 0.0, (0.0, 0.0))


def test_scores_match_a_manual_calculation() -> None:
    seen = np.array([[4.0], [0.0], [1.0], [2.0]])
    quantiles = np.array([[[1.0, 3.0]]] * 4)
    p_arrival = np.full((4, 1), 0.8)
    forecast = Forecast(mean=p_arrival, quantiles=quantiles, p_arrival=p_arrival)
    found = scores(tally(forecast, seen, (0.5, 0.9), np.full(4, True)), 0, (0.5, 0.9))
    assert found.mae == pytest.approx((3 + 1 + 0 + 1) / 4)
    assert found.pinball == pytest.approx((1.25 / 2, (0.9 + 0.3 + 0.2 + 0.1) / 4))
    assert found.at_or_below == (0.5, 0.75)
    assert found.below == (0.25, 0.75)
    assert found.miscalibration == pytest.approx((0.0, 0.15))
    assert found.brier == pytest.approx((3 * 0.04 + 0.64) / 4)


def test_history_at_equals_the_history_of_counts() -> None:
    counts = streams.poisson(0.2, models=3, minutes=3 * streams.DAY + 7)
    store = Counts()
    store.advance(0.0)
    for name in ("a", "b", "c"):
        store.add_model(name)
    for minute in np.flatnonzero(counts.any(axis=0)):
        store.advance(minute * 60.0 + 30)
        rows = np.flatnonzero(counts[:, minute])
        store.add(
            ["abc"[row] for row in rows], [minute * 60.0] * rows.size, counts[rows, minute].tolist()
        )
    live, tested = store.history(counts.shape[1] * 60.0), streams.of(counts)
    assert (live.minutes == tested.minutes).all()
    assert (live.ten_minutes == tested.ten_minutes).all()
    assert (live.active_minutes == tested.active_minutes).all()
    assert (live.recent == tested.recent).all()
    assert live.origin_s == tested.origin_s


def test_windows_must_be_whole_minutes() -> None:
    counts = streams.poisson(1.0, models=1, minutes=200)
    with pytest.raises(BadHorizon, match="whole minutes"):
        backtest(counts, {}, ForecastHorizon(windows_s=(10.0,)), BacktestParams(1, 2))


def test_reads_long_and_wide_traces(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("minute,model,count\n1,b,2\n3,a,1\n1,b,1\n")
    with gzip.open(tmp_path / "wide.csv.gz", "wt") as file:
        file.write("minute,a,b\n1,0,3\n3,1,\n")
    for name in ("long.csv", "wide.csv.gz"):
        trace = read_minutes(tmp_path / name)
        assert trace.models == ("a", "b")
        assert trace.counts.tolist() == [[0, 0, 0, 1], [0, 3, 0, 0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must start with"),
        ("time,model,count\n", "must start with"),
        ("minute,model,count\n", "no arrivals"),
        ("minute,model,count\n1,a\n", ":2 must have 3 cells"),
        ("minute,model,count\n1,a,-4\n", "was '-4'"),
        ("minute,model,count\n1,a,1e9\n", "was '1e9'"),
        ("minute,model,count\nnan,a,1\n", "was 'nan'"),
    ],
)
def test_rejects_invalid_traces_with_the_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadArrivalTrace, match=says):
        read_minutes(path)


@pytest.mark.skipif(not _DATA, reason="PILOTLIGHT_DATA names no folder with traces")
def test_typed_beats_the_baselines_on_a_real_trace() -> None:
    trace = read_minutes(Path(_DATA or "") / "gentd26_per_minute.csv.gz")
    names = ("typed", "naive", "ewma", "hybrid-histogram")
    params = BacktestParams(14 * streams.DAY, 23 * streams.DAY, every_min=331)
    done = backtest(trace.counts, {name: METHODS[name] for name in names}, HORIZON, params)
    brier = {}
    for name in names:
        total = done.total(name)
        assert total is not None
        brier[name] = scores(total, 1, HORIZON.probabilities).brier
    assert min(brier, key=brier.__getitem__) == "typed"
