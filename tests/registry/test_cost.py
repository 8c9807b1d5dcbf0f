"""Averages of arrivals, their blend with published forecasts, and the loss of an eviction."""

from math import exp, inf, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.prices import (
    ArrivalRates,
    blended_rates,
    characteristic_time_s,
    eviction_loss_s,
)

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


rates = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=20)


def test_equal_models_are_in_memory_as_often_as_there_is_room() -> None:
    time_s = characteristic_time_s([2.0] * 8, [1.0] * 8, 4.0)
    assert time_s == pytest.approx(log(2) / 2.0, rel=1e-3)


def test_memory_counts_in_bytes() -> None:
    one_large = characteristic_time_s([1.0, 1.0, 1.0], [6.0, 1.0, 1.0], 4.0)
    equal = characteristic_time_s([1.0, 1.0, 1.0], [8 / 3] * 3, 4.0)
    assert one_large == pytest.approx(equal, rel=1e-3)


def test_the_time_is_infinite_if_all_models_fit() -> None:
    assert characteristic_time_s([1.0, 1.0], [2.0, 2.0], 4.0) == inf


@given(rates, st.floats(0.01, 0.99))
def test_the_models_fill_the_memory_on_average(per_s: list[float], share: float) -> None:
    sizes = [float(1 + n % 3) for n in range(len(per_s))]
    capacity = share * sum(sizes)
    time_s = characteristic_time_s(per_s, sizes, capacity)
    filled = sum(size * (1 - exp(-rate * time_s)) for rate, size in zip(per_s, sizes, strict=True))
    assert filled == pytest.approx(capacity, rel=1e-2)


@pytest.mark.parametrize("bad", [nan, inf, -1.0, 0.0])
def test_rates_and_sizes_that_are_not_positive_numbers_count_as_none(bad: float) -> None:
    expected = characteristic_time_s([1.0] * 4, [1.0] * 4, 2.0)
    assert characteristic_time_s([1.0] * 4 + [bad], [1.0] * 5, 2.0) == expected
    assert characteristic_time_s([1.0] * 5, [1.0] * 4 + [bad], 2.0) == expected


@pytest.mark.parametrize("capacity", [nan, 0.0, -1.0])
def test_nothing_stays_without_memory(capacity: float) -> None:
    assert characteristic_time_s([1.0], [1.0], capacity) == 0.0


def test_a_model_that_is_certainly_wanted_costs_its_load_and_the_wait_of_the_next() -> None:
    assert eviction_loss_s(2.0, 3.0, inf, 1) == pytest.approx(2.0 * (1 + 3.0))


def test_a_copy_beside_overloaded_ones_costs_as_much_as_an_only_one() -> None:
    alone_s = eviction_loss_s(2.0, 1.0, 5.0, 1, 0.1)
    for copies in (2, 3, 6):
        for serve_s in (inf, 100.0, nan, 0.0, -1.0):
            assert eviction_loss_s(2.0, 1.0, 5.0, copies, serve_s) == alone_s


@pytest.mark.parametrize(
    ("copies", "serve_s", "part"),
    [(2, 0.1, 0.1), (2, 0.9, 0.9), (3, 0.1, 0.01 / 2.1), (3, 1.0, 1 / 3), (4, 2.0, 4 / 9)],
)
def test_a_copy_beside_others_costs_by_how_busy_they_are(
    copies: int, serve_s: float, part: float
) -> None:
    """Erlang's C formula, by hand for one, two and three servers."""
    alone_s = eviction_loss_s(2.0, 1.0, 5.0, 1)
    assert eviction_loss_s(2.0, 1.0, 5.0, copies, serve_s) == pytest.approx(alone_s * part)


@given(st.integers(1, 20), st.floats(0.01, 10), st.floats(0.001, 10), st.floats(1.0, 3.0))
def test_each_further_copy_costs_less_and_a_busier_one_more(
    copies: int, rate_per_s: float, serve_s: float, factor: float
) -> None:
    loss_s = eviction_loss_s(1.0, rate_per_s, 5.0, copies, serve_s)
    assert 0.0 <= eviction_loss_s(1.0, rate_per_s, 5.0, copies + 1, serve_s) <= loss_s
    assert eviction_loss_s(1.0, rate_per_s, 5.0, copies, factor * serve_s) >= loss_s


@pytest.mark.parametrize(
    ("reload_s", "rate_per_s", "time_s"),
    [
        pytest.param(nan, 1.0, 1.0, id="reload-nan"),
        pytest.param(-1.0, 1.0, 1.0, id="reload-negative"),
        pytest.param(inf, 1.0, 1.0, id="reload-infinite"),
        pytest.param(1.0, nan, 1.0, id="rate-nan"),
        pytest.param(1.0, inf, 1.0, id="rate-infinite"),
        pytest.param(1.0, -1.0, 1.0, id="rate-negative"),
        pytest.param(1.0, 1.0, nan, id="time-nan"),
        pytest.param(1.0, 1.0, -1.0, id="time-negative"),
        pytest.param(1e300, 1e300, 1.0, id="overflow"),
    ],
)
def test_values_that_are_no_positive_numbers_cost_nothing(
    reload_s: float, rate_per_s: float, time_s: float
) -> None:
    assert eviction_loss_s(reload_s, rate_per_s, time_s, 1) == 0.0


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.01, 10), st.floats(1.0, 3.0))
def test_the_loss_grows_with_each_of_its_causes(
    reload_s: float, rate_per_s: float, time_s: float, factor: float
) -> None:
    loss_s = eviction_loss_s(reload_s, rate_per_s, time_s, 1)
    assert eviction_loss_s(factor * reload_s, rate_per_s, time_s, 1) >= loss_s
    assert eviction_loss_s(reload_s, factor * rate_per_s, time_s, 1) >= loss_s
    assert eviction_loss_s(reload_s, rate_per_s, factor * time_s, 1) >= loss_s
