"""A pool's demand: fits, forecasts, recency, published rates, announced arrivals."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecasting.counts import Counts
from autoscaler.forecasting.forecasts import (
    HORIZON,
    Demand,
    arrivals_per_s,
    fit,
    fit_model,
    forecast_by_pattern,
    forecast_demand,
    with_announced,
)
from autoscaler.forecasting.history import Forecast, ForecastHorizon
from autoscaler.forecasting.recency import fit_recency, p_recent
from autoscaler.plan import PUBLISH_INTERVAL_S, RatePublication
from registry.domain.demand import ArrivalHint
from registry.domain.model import ModelName
from tests.autoscaler.forecasting import streams
from tests.autoscaler.views import demand, history, model, pod, pool

NOW_MIN = 2_880
MODELS = ["default/a", "default/b"]
MINUTE_HORIZON = ForecastHorizon((60.0,), (0.5,))
DEMAND = Demand(
    None,
    MINUTE_HORIZON,
    Forecast(
        mean=np.full((2, 1), 0.1), quantiles=np.zeros((2, 1, 1)), p_arrival=np.full((2, 1), 0.1)
    ),
    np.full(2, 0.1),
)
_HISTORY = streams.of(streams.poisson(0.01, models=4, minutes=2 * streams.DAY))
NAMES = [f"default/{name}" for name in "abcd"]
PLAIN = Demand(
    _HISTORY, HORIZON, forecast_by_pattern(_HISTORY, fit(_HISTORY), HORIZON), np.full(4, 0.1)
)


def _bursts(models: int) -> list[list[int]]:
    """Each hour five minutes in a row, with a different phase for each model."""
    return [
        [hour * 60 + (7 * row) % 55 + step for hour in range(48) for step in range(5)]
        for row in range(models)
    ]


def test_recency_separates_ongoing_bursts_from_past_ones() -> None:
    fitted = fit_recency(history(_bursts(20), now_min=NOW_MIN))
    [stream] = _bursts(1)

    def at(minute: int) -> float:
        known = history([[each for each in stream if each < minute]], now_min=minute)
        return float(p_recent(known, fitted)[0])

    assert at(47 * 60 + 3) > 0.5
    assert at(47 * 60 + 25) < 0.1


def test_recency_is_calibrated() -> None:
    bursts = _bursts(20)
    fitted = fit_recency(history(bursts, now_min=NOW_MIN - 200))
    expected = came = 0.0
    for minute in range(NOW_MIN - 200, NOW_MIN):
        known = history([[at for at in each if at < minute] for each in bursts], now_min=minute)
        expected += float(p_recent(known, fitted).sum())
        came += sum(minute in each for each in bursts)
    assert 0.8 < expected / came < 1.25


def test_recency_prior_falls_with_the_time_since_the_last_arrival() -> None:
    new = replace(history([[NOW_MIN - 1]], now_min=NOW_MIN), since_minute=np.array([NOW_MIN - 1]))
    fitted = fit_recency(new)
    p = [p_recent(replace(new, origin_s=60.0 * (NOW_MIN + each)), fitted)[0] for each in (0, 9)]
    assert p == pytest.approx([1 / 2, 1 / 11])


def test_accepts_models_without_arrivals() -> None:
    silent = history([[], []], now_min=NOW_MIN)
    fitted = fit_model(silent, ("a", "b"))
    found = forecast_demand(silent, fitted)
    assert np.isfinite(found.p_minute).all()
    assert (found.p_minute < 0.01).all()


def test_demand_rows_follow_the_order_of_the_models() -> None:
    counts = Counts()
    counts.advance(86_400.0)
    counts.add(["busy"] * 500, [86_400.0 - 60 * at for at in range(500)], [3] * 500)
    names = ("absent", "busy")
    known = counts.history_of(names, 86_400.0)
    found = forecast_demand(known, fit_model(known, names))
    assert found.forecast.mean.shape == (2, len(HORIZON.windows_s))
    assert found.p_minute[1] > 0.5 > found.p_minute[0]


def test_refits_when_due_or_when_models_change() -> None:
    two, three = ("a", "b"), ("a", "b", "c")
    first = fit_model(history([[1], [2]], now_min=100), two, interval_s=600.0)
    assert fit_model(history([[1], [2]], now_min=109), two, first, interval_s=600.0) is first
    assert fit_model(history([[1], [2]], now_min=110), two, first, interval_s=600.0) is not first
    more = fit_model(history([[1], [2], []], now_min=101), three, first, interval_s=600.0)
    assert more.models == three
    assert fit_model(history([[1], [2]], now_min=50), two, first, interval_s=600.0) is not first


@pytest.mark.parametrize(
    ("p", "arrivals", "per_s"),
    [
        pytest.param(0.5, 0.7, log(2) / 60, id="rare"),
        pytest.param(0.5, 3_000.0, log(2) / 60, id="a burst that may not come"),
        pytest.param(1.0, 3_000.0, 50.0, id="continuous"),
        pytest.param(0.0, 0.0, 0.0, id="none"),
        pytest.param(np.nan, np.nan, 0.0, id="no number"),
        pytest.param(1.0, np.inf, -log(0.01) / 60, id="infinite"),
    ],
)
def test_the_rate_gives_the_probability_of_an_arrival(
    p: float, arrivals: float, per_s: float
) -> None:
    assert arrivals_per_s(demand([p], arrivals=[arrivals])) == pytest.approx([per_s])


def test_bands_are_quantiles_of_the_next_minute_per_second() -> None:
    forecast = demand([0.9], arrivals=[6.0])
    quantiles = forecast.forecast.quantiles
    quantiles[0, :] = [3.0, 30.0]
    rates = RatePublication().next_rates(
        pool([pod()], [model("a")], demand=forecast), 1.0, time_scale=2.0
    )
    assert rates is not None
    (band,) = rates.bands.values()
    assert band == pytest.approx((2 * 6.0 / 60, 2 * 3.0 / 60, 2 * 30.0 / 60))


def test_rates_are_published_at_intervals_by_key_and_time() -> None:
    view = pool([pod()], [model("a"), model("b")], demand=demand([0.5, 1e-9]))
    publication = RatePublication()
    first = publication.next_rates(view, 100.0, time_scale=60.0)
    assert first is not None
    assert first.made_at_s == 100.0
    assert first.per_s == {view.models[0].key: pytest.approx(log(2))}
    assert first.bands.keys() == first.per_s.keys()
    assert publication.next_rates(view, 99.0 + PUBLISH_INTERVAL_S) is None
    assert publication.next_rates(view, 100.0 + PUBLISH_INTERVAL_S) is not None
    assert publication.next_rates(view, 50.0) is not None  # the clock was set back
    assert RatePublication().next_rates(pool([pod()], [model("a")]), 100.0) is None


def hint(name: str, probability: float, until_s: float) -> ArrivalHint:
    return ArrivalHint(ModelName("default", name), probability, until_s)


def test_a_model_whose_step_is_planned_is_expected_within_the_minute() -> None:
    found = with_announced(DEMAND, MODELS, [hint("b", 0.9, 105.0)], now_s=100.0)
    assert found.p_minute[0] == 0.1
    assert np.isclose(found.p_minute[1], 1 - 0.9 * 0.1)
    assert np.isclose(found.forecast.p_arrival[1, 0], 1 - 0.9 * 0.1)
    assert np.isclose(found.forecast.mean[1, 0], 1.0)


def test_arrivals_after_the_minute_count_in_part() -> None:
    found = with_announced(DEMAND, MODELS, [hint("a", 1.0, 220.0)], now_s=100.0)
    assert np.isclose(found.p_minute[0], 1 - 0.9 * 0.5)


def test_overdue_arrivals_are_expected_now() -> None:
    found = with_announced(DEMAND, MODELS, [hint("a", 1.0, 90.0)], now_s=100.0)
    assert found.p_minute[0] == 1.0


def test_hints_on_unknown_models_change_nothing() -> None:
    assert with_announced(DEMAND, MODELS, [hint("c", 1.0, 105.0)], 100.0) is DEMAND


def test_without_hints_the_forecast_is_unchanged() -> None:
    assert with_announced(PLAIN, NAMES, [], 0.0) is PLAIN


def test_a_certain_hint_makes_an_arrival_certain() -> None:
    found = with_announced(PLAIN, NAMES, [hint("c", 1.0, 10.0)], 0.0).forecast
    assert found.p_arrival[2] == pytest.approx(1.0)
    assert (found.quantiles[2] >= 1).all()
    others = [0, 1, 3]
    assert (found.p_arrival[others] == PLAIN.forecast.p_arrival[others]).all()
    assert (found.quantiles[others] == PLAIN.forecast.quantiles[others]).all()


def test_hints_are_independent_of_each_other() -> None:
    hints = [hint("a", 0.5, 10.0), hint("a", 0.4, 5.0)]
    found = with_announced(PLAIN, NAMES, hints, 0.0).forecast
    none = (1 - PLAIN.forecast.p_arrival[0]) * 0.5 * 0.6
    assert found.p_arrival[0] == pytest.approx(1 - none)


def test_a_window_shorter_than_the_hint_gets_its_share() -> None:
    found = with_announced(PLAIN, NAMES, [hint("a", 0.6, 120.0)], 0.0).forecast
    expected = 1 - (1 - PLAIN.forecast.p_arrival[0, 0]) * 0.95
    assert found.p_arrival[0, 0] == pytest.approx(expected)


@given(
    st.lists(
        st.builds(
            ArrivalHint,
            model=st.sampled_from([ModelName.parse(name) for name in NAMES]),
            probability=st.floats(0, 1),
            until_s=st.floats(0.1, 10_000),
            count=st.floats(1, 1e6),
        ),
        max_size=6,
    )
)
def test_hints_never_lower_a_forecast(hints: list[ArrivalHint]) -> None:
    found, plain = with_announced(PLAIN, NAMES, hints, 0.0).forecast, PLAIN.forecast
    assert (found.p_arrival >= plain.p_arrival - 1e-12).all()
    assert (found.p_arrival <= 1).all()
    assert (found.mean >= plain.mean).all()
    assert (found.quantiles >= plain.quantiles).all()
    assert (np.diff(found.quantiles, axis=2) >= 0).all()
    assert np.isfinite(found.quantiles).all()
