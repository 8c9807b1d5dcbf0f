"""Moving averages of arrivals, and their blend with published forecasts."""

from __future__ import annotations

from math import inf, nan

import pytest

from registry.cost.arrival_rates import ArrivalRates, blended_rates

NOW_S = 1_000.0


def steady(rate_per_s: float, seconds: float) -> ArrivalRates:
    """Regular arrivals of model `a` up to `NOW_S`."""
    rates = ArrivalRates()
    for n in reversed(range(int(rate_per_s * seconds))):
        rates.record("a", NOW_S - n / rate_per_s)
    return rates


@pytest.mark.parametrize("seconds", [10.0, 60.0, 600.0])
def test_a_steady_rate_is_known_within_seconds(seconds: float) -> None:
    assert steady(4.0, seconds).rate_per_s("a", NOW_S) == pytest.approx(4.0, rel=0.1)


def test_a_rate_decays_without_arrivals() -> None:
    rates = steady(4.0, 600.0)
    assert rates.rate_per_s("a", NOW_S + 60.0) == pytest.approx(4.0 / 2.718, rel=0.05)
    assert rates.rates_per_s(NOW_S + 3600.0) == {}


def test_unknown_models_have_no_rate() -> None:
    assert ArrivalRates().rate_per_s("a", NOW_S) == 0.0


@pytest.mark.parametrize("jump_s", [-1e6, -1.0])
def test_a_clock_that_is_set_back_leaves_the_rates(jump_s: float) -> None:
    rates = steady(4.0, 600.0)
    now_s = NOW_S + jump_s
    assert rates.rates_per_s(now_s)["a"] == pytest.approx(4.0, rel=0.05)
    for n in range(2400):
        rates.record("a", now_s + n / 4.0)
    assert rates.rates_per_s(now_s + 600.0)["a"] == pytest.approx(4.0, rel=0.05)


def test_a_clock_that_jumps_ahead_forgets_the_past_only() -> None:
    rates = steady(4.0, 600.0)
    assert rates.rates_per_s(NOW_S + 1e9) == {}
    rates.record("a", NOW_S + 1e9)
    assert rates.rate_per_s("a", NOW_S + 1e9) == pytest.approx(1 / 60, rel=0.01)


def test_without_forecasts_own_rates_count() -> None:
    assert blended_rates({"a": 2.0}, {}) == {"a": 2.0}


def test_the_first_gateway_of_two_knows_the_rates_of_both() -> None:
    found = blended_rates({"a": 2.0, "b": 1.0}, {"a": 4.0, "b": 2.0})
    assert found == pytest.approx({"a": 4.0, "b": 2.0})


def test_a_forecast_stands_for_models_without_arrivals_here() -> None:
    assert 0 < blended_rates({}, {"a": 4.0})["a"] < 4.0


@pytest.mark.parametrize("wrong", [nan, inf, -inf, -1.0])
def test_forecasts_that_are_no_rates_are_ignored(wrong: float) -> None:
    assert blended_rates({"a": 2.0}, {"a": wrong}) == {"a": 2.0}
    assert blended_rates({"a": 2.0}, {"a": 2.0, "b": wrong}) == pytest.approx({"a": 2.0})


def test_a_forecast_of_one_model_that_is_ten_times_too_low_moves_a_rate_by_less_than_a_third() -> (
    None
):
    found = blended_rates({"a": 2.0, "b": 2.0}, {"a": 0.2, "b": 2.0})
    assert found["a"] > 2.0 * 2 / 3
