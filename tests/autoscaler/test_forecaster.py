"""Partial forecasts equal full ones."""

import numpy as np
import pytest

from autoscaler.forecast import DemandForecaster
from autoscaler.forecasting.counts import Counts, CountsParams, ForecastInput
from autoscaler.forecasting.forecasts import Demand, FittedModel, forecast_demand
from autoscaler.forecasting.history import History, Integers

pytestmark = pytest.mark.slow

NAMES = tuple(f"default/m{row}" for row in range(12))
START_S = 3 * 86_400.0


def _counts() -> Counts:
    counts = Counts(CountsParams(models=len(NAMES)))
    counts.advance(START_S)
    for name in NAMES:
        counts.add_model(name)
    for row, name in enumerate(NAMES[:-1]):
        times_s = [START_S - 600 - step * 120 * (row + 1) for step in range(200)]
        counts.add([name] * len(times_s), times_s, [1] * len(times_s))
    return counts


def _past(
    counts: Counts, now_s: float, rows: Integers | None, names: tuple[str, ...] = NAMES
) -> ForecastInput:
    counts.advance(now_s)
    places = counts.rows_of(names)
    chosen = places if rows is None else places[rows]
    return ForecastInput(names, rows, counts.history(now_s, chosen), counts.recent_seconds(places))


def test_a_partial_forecast_equals_a_full_one() -> None:
    counts = _counts()
    forecaster = DemandForecaster()
    first = forecaster.forecast(_past(counts, START_S, forecaster.due(NAMES, (), START_S)))
    now_s = START_S + 4
    counts.advance(now_s)
    counts.add([NAMES[3]], [now_s], [5])
    rows = forecaster.due(NAMES, {NAMES[3]}, now_s)
    assert rows is not None
    assert rows.tolist() == [3]
    part = forecaster.forecast(_past(counts, now_s, rows))

    whole = DemandForecaster(is_partial=False)
    whole.forecast(_past(_counts(), START_S, None))
    full = whole.forecast(_past(counts, now_s, None))
    assert part.p_minute[3] == pytest.approx(full.p_minute[3], rel=1e-6)
    assert part.forecast.mean[3] == pytest.approx(full.forecast.mean[3], rel=1e-6)
    others = np.arange(len(NAMES)) != 3
    assert (part.forecast.mean[others] == first.forecast.mean[others]).all()
    assert part.history is None
    assert full.history is not None


@pytest.mark.parametrize(
    ("models", "known_s", "burst_s", "per_s"),
    [
        pytest.param(1, 20, 30, 10, id="new-model"),
        pytest.param(1, 80, 30, 1, id="new-model-slow"),
        pytest.param(5, 30, 5, 50, id="new-pool"),
        pytest.param(2, 2000, 10, 4, id="older-pool"),
    ],
)
def test_p_minute_falls_soon_after_a_burst(
    models: int, known_s: int, burst_s: int, per_s: int
) -> None:
    """From 150 s on, with little data to fit to."""
    names, counts, forecaster = (
        NAMES[:models],
        Counts(CountsParams(models=models)),
        DemandForecaster(),
    )
    counts.advance(START_S + 17)
    for name in names:
        counts.add_model(name)
    begin_s = START_S + 17 + known_s
    counts.advance(begin_s + burst_s)
    times_s = [begin_s + second for second in range(burst_s)]
    counts.add([names[0]] * burst_s, times_s, [per_s] * burst_s)
    for silent_s in range(150, 450, 12):
        now_s = begin_s + burst_s + silent_s
        past = _past(counts, now_s, forecaster.due(names, (), now_s), names)
        assert forecaster.forecast(past).p_minute.max() < 0.5, silent_s


@pytest.mark.parametrize("epoch_s", [0.0, START_S + 41], ids=["at a minute", "within a minute"])
@pytest.mark.parametrize("quiet_s", [30, 90, 180])
def test_a_model_heard_of_a_minute_ago_is_expected_until_its_rhythm_is_known(
    quiet_s: int, epoch_s: float
) -> None:
    """Two bursts of 8 s, 500 requests per second, the only arrivals ever."""
    counts, forecaster = Counts(CountsParams(models=1)), DemandForecaster()
    counts.advance(epoch_s)
    counts.add_model(NAMES[0])
    bursts = (4, 4 + 8 + quiet_s)
    for second in range(0, bursts[1] + 68, 2):
        now_s = epoch_s + second
        counts.advance(now_s)
        arrived = [at for at in bursts if at <= second < at + 8]
        if arrived:
            counts.add([NAMES[0]], [now_s], [500])
        rows = forecaster.due(NAMES[:1], NAMES[:1] if arrived else (), now_s)
        demand = forecaster.forecast(_past(counts, now_s, rows, NAMES[:1]))
        if any(at < second < at + 8 + 60 for at in bursts):
            assert demand.p_minute[0] > 0.3, second


def test_all_rows_are_due_after_a_change_of_models_or_clock() -> None:
    counts, forecaster = _counts(), DemandForecaster()
    assert forecaster.due(NAMES, (), START_S) is None
    forecaster.forecast(_past(counts, START_S, None))
    assert forecaster.due(NAMES, (), START_S + 1) is not None
    assert forecaster.due(NAMES[1:], (), START_S + 1) is None
    assert forecaster.due(NAMES, (), START_S - 100) is None
    assert forecaster.due(NAMES, (), START_S + 86_400) is None


def test_all_rows_are_due_after_a_failure() -> None:
    calls = 0

    def breaks_once(history: History, fitted: FittedModel) -> Demand:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ZeroDivisionError("a mistake of the forecast")
        return forecast_demand(history, fitted)

    counts, forecaster = _counts(), DemandForecaster(breaks_once)
    forecaster.forecast(_past(counts, START_S, None))
    with pytest.raises(ZeroDivisionError):
        forecaster.forecast(_past(counts, START_S + 20, np.array([2])))
    assert forecaster.due(NAMES, (), START_S + 21) is None
    assert forecaster.forecast(_past(counts, START_S + 21, None)).p_minute.shape == (12,)


def test_tolerates_a_week_without_arrivals() -> None:
    counts, forecaster = _counts(), DemandForecaster()
    forecaster.forecast(_past(counts, START_S, None))
    now_s = START_S + 7 * 86_400
    demand = forecaster.forecast(_past(counts, now_s, forecaster.due(NAMES, (), now_s)))
    assert (demand.p_minute < 0.05).all()
    counts.add([NAMES[0]] * 3, [now_s - 2, now_s - 1, now_s], [4, 4, 4])
    later_s = now_s + 1
    rows = forecaster.due(NAMES, {NAMES[0]}, later_s)
    again = forecaster.forecast(_past(counts, later_s, rows))
    assert again.p_minute[0] > 5 * demand.p_minute[0]
    assert np.isfinite(again.forecast.quantiles).all()
