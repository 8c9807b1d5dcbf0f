"""Forecasts of streams with known answers, and invariants for any counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from autoscaler.forecasting import negative_binomial as nb
from autoscaler.forecasting.forecasts import fit, forecast_by_pattern
from autoscaler.forecasting.history import BadHorizon, Forecast, ForecastHorizon, Integers
from research.forecasting.methods import METHODS
from tests.autoscaler.forecasting import streams

MINUTES = 3 * streams.DAY
HORIZON = ForecastHorizon()
LEVELS = (0.05, 0.5, 0.9, 0.99)


def _forecast(counts: Integers, method: str = "typed", minute: int | None = None) -> Forecast:
    history = streams.of(counts, minute)
    return METHODS[method](history, fit(history), HORIZON)


@pytest.mark.parametrize("rate", [0.02, 0.15, 2.0, 50.0])
def test_steady_poisson_is_calibrated(rate: float) -> None:
    models = 400
    counts = streams.poisson(rate, models=models, minutes=MINUTES + 60)
    found = _forecast(counts, minute=MINUTES)
    for column, window in ((1, 1), (2, 10), (3, 60)):
        seen = counts[:, MINUTES : MINUTES + window].sum(axis=1)
        slack = 4 * np.sqrt(0.25 / models)
        assert found.mean[:, column].mean() == pytest.approx(rate * window, rel=0.15)
        expected = 1 - np.exp(-rate * window)
        assert found.p_arrival[:, column].mean() == pytest.approx(expected, abs=0.06)
        for at, level in enumerate(HORIZON.probabilities):
            quantile = found.quantiles[:, column, at]
            assert (seen <= quantile).mean() >= level - slack
            assert (seen < quantile).mean() <= level + slack


def test_forecasts_hourly_arrivals() -> None:
    counts = streams.hourly(models=4, minutes=MINUTES + 60, phase=7)
    horizon = ForecastHorizon(windows_s=(60.0, 600.0, 3600.0))
    history = streams.of(counts, MINUTES)
    fitted = fit(history)
    p_arrival = {}
    for minute in (0, 6, 7, 8, 30):
        now = streams.of(counts, MINUTES + minute)
        p_arrival[minute] = forecast_by_pattern(now, fitted, horizon).p_arrival[0]
    assert p_arrival[7][0] > 0.9
    assert p_arrival[0][0] < 0.05
    assert p_arrival[0][1] > 0.9
    assert p_arrival[8][1] < 0.05
    assert p_arrival[30][1] < 0.05
    assert min(each[2] for each in p_arrival.values()) > 0.9


def test_p_arrival_falls_with_the_time_since_the_last_arrival() -> None:
    rng = np.random.default_rng(9)
    is_on = np.repeat(rng.random((30, 12 * 24)) < 0.06, 60, axis=1)[:, : 12 * streams.DAY]
    counts = rng.poisson(np.where(is_on, 0.2, 0.0)).astype(np.uint32)
    recent, silent = counts.copy(), counts.copy()
    recent[:, -2] = 1
    silent[:, -12 * 60 :] = 0
    one, other = _forecast(recent, "sparse"), _forecast(silent, "sparse")
    assert (one.p_arrival[:, 2] > 2 * other.p_arrival[:, 2]).all()


@pytest.mark.parametrize("method", METHODS)
def test_accepts_a_history_without_arrivals(method: str) -> None:
    none = np.zeros((3, 40), dtype=np.uint32)
    found = _forecast(none, method)
    _check(found)
    assert found.quantiles[:, :2, 0].max() == 0
    _check(_forecast(np.zeros((0, 40), dtype=np.uint32), method))


@settings(max_examples=25)
@given(
    counts=arrays.arrays(
        np.uint32,
        st.tuples(st.integers(1, 4), st.sampled_from([1, 30, 700, 3000])),
        elements=st.sampled_from([0, 0, 0, 0, 1, 2, 60, 10**6, 2**31]),
        fill=st.sampled_from([0, 1, 5]),
    ),
    method=st.sampled_from(sorted(METHODS)),
)
def test_any_counts_give_sound_forecasts(counts: Integers, method: str) -> None:
    history = streams.of(counts)
    fitted = fit(history)
    found = METHODS[method](history, fitted, HORIZON)
    _check(found)
    again = METHODS[method](history, fit(history), HORIZON)
    assert (again.quantiles == found.quantiles).all()
    assert (again.p_arrival == found.p_arrival).all()


def _check(found: Forecast) -> None:
    for values in (found.mean, found.quantiles, found.p_arrival):
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    assert (found.p_arrival <= 1).all()
    assert (np.diff(found.quantiles, axis=2) >= 0).all()
    most = HORIZON.max_per_s * np.asarray(HORIZON.windows_s)
    assert (found.mean <= most).all()


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.floats(0.001, 30))
def test_forecasts_do_not_fall_with_longer_windows(seed: int, rate: float) -> None:
    found = _forecast(streams.poisson(rate, models=3, minutes=MINUTES, seed=seed))
    assert (np.diff(found.mean, axis=1) >= 0).all()
    assert (np.diff(found.p_arrival, axis=1) >= 0).all()


def test_the_mean_scales_with_the_arrivals() -> None:
    counts = streams.poisson(5.0, models=10, minutes=MINUTES)
    one, ten = _forecast(counts, "steady"), _forecast(counts * 10, "steady")
    assert ten.mean == pytest.approx(10 * one.mean, rel=0.1)


def test_forecasts_of_models_are_independent() -> None:
    counts = np.concatenate(
        [
            streams.poisson(2.0, models=3, minutes=MINUTES),
            streams.hourly(models=3, minutes=MINUTES),
            streams.poisson(0.01, models=3, minutes=MINUTES),
        ]
    )
    history = streams.of(counts)
    fitted = fit(history)
    whole = forecast_by_pattern(history, fitted, HORIZON)
    order = np.array([7, 1, 4])
    part = forecast_by_pattern(history.take(order), fitted.take(order), HORIZON)
    assert part.mean == pytest.approx(whole.mean[order])
    assert (part.quantiles == whole.quantiles[order]).all()


@pytest.mark.parametrize(
    ("windows_s", "probabilities"),
    [
        ((), (0.5,)),
        ((0.0,), (0.5,)),
        ((float("nan"),), (0.5,)),
        ((60.0, 10.0), (0.5,)),
        ((10**9,), (0.5,)),
        ((60.0,), (0.9, 0.5)),
        ((60.0,), (1.0,)),
    ],
)
def test_rejects_invalid_horizons(
    windows_s: tuple[float, ...], probabilities: tuple[float, ...]
) -> None:
    with pytest.raises(BadHorizon, match="must"):
        ForecastHorizon(windows_s, probabilities)


@pytest.mark.parametrize("mean", [0.001, 0.3, 4.0, 40.0, 300.0, 20_000.0])
@pytest.mark.parametrize("size", [0.1, 1.0, 8.0, 1e6])
def test_quantiles_match_sampled_counts(mean: float, size: float) -> None:
    rng = np.random.default_rng(5)
    drawn = rng.poisson(rng.gamma(size, mean / size, 200_000))
    found = nb.quantiles(np.array([mean]), np.array([size]), LEVELS)[0]
    for level, quantile in zip(LEVELS, found, strict=True):
        slack = 0.01
        assert (drawn <= quantile + 1).mean() >= level - slack
        assert (drawn < quantile - 1).mean() <= level + slack


def test_size_from_p_arrival() -> None:
    mean, size = np.array([0.2, 2.0, 7.0]), np.array([0.3, 1.0, 2.5])
    assert nb.size_of_zeros(mean, nb.p_at_least_one(mean, size)) == pytest.approx(size, rel=1e-3)
