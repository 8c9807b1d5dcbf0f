"""Hints raise forecasts of their models only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecasting.errors import BadHorizon
from autoscaler.forecasting.fitting import fit
from autoscaler.forecasting.forecasts import forecast_by_pattern
from autoscaler.forecasting.hints import Hint, with_hints
from autoscaler.forecasting.history import ForecastHorizon
from tests.autoscaler.forecasting import streams

HORIZON = ForecastHorizon()
_HISTORY = streams.of(streams.poisson(0.01, models=4, minutes=2 * streams.DAY))
PLAIN = forecast_by_pattern(_HISTORY, fit(_HISTORY), HORIZON)


def test_without_hints_the_forecast_is_unchanged() -> None:
    assert with_hints(PLAIN, [], HORIZON) is PLAIN


def test_a_certain_hint_makes_an_arrival_certain() -> None:
    found = with_hints(PLAIN, [Hint(row=2, probability=1.0, within_s=10.0)], HORIZON)
    assert found.p_arrival[2] == pytest.approx(1.0)
    assert (found.quantiles[2] >= 1).all()
    others = [0, 1, 3]
    assert (found.p_arrival[others] == PLAIN.p_arrival[others]).all()
    assert (found.quantiles[others] == PLAIN.quantiles[others]).all()


def test_hints_are_independent_of_each_other() -> None:
    hints = [
        Hint(row=0, probability=0.5, within_s=10.0),
        Hint(row=0, probability=0.4, within_s=5.0),
    ]
    found = with_hints(PLAIN, hints, HORIZON)
    none = (1 - PLAIN.p_arrival[0]) * 0.5 * 0.6
    assert found.p_arrival[0] == pytest.approx(1 - none)


def test_a_window_shorter_than_the_hint_gets_its_share() -> None:
    found = with_hints(PLAIN, [Hint(row=0, probability=0.6, within_s=120.0)], HORIZON)
    assert found.p_arrival[0, 0] == pytest.approx(1 - (1 - PLAIN.p_arrival[0, 0]) * 0.95)


@given(
    st.lists(
        st.builds(
            Hint,
            row=st.integers(0, 3),
            probability=st.floats(0, 1),
            within_s=st.floats(0.1, 10_000),
            count=st.floats(1, 1e6),
        ),
        max_size=6,
    )
)
def test_hints_never_lower_a_forecast(hints: list[Hint]) -> None:
    found = with_hints(PLAIN, hints, HORIZON)
    assert (found.p_arrival >= PLAIN.p_arrival - 1e-12).all()
    assert (found.p_arrival <= 1).all()
    assert (found.mean >= PLAIN.mean).all()
    assert (found.quantiles >= PLAIN.quantiles).all()
    assert (np.diff(found.quantiles, axis=2) >= 0).all()
    assert np.isfinite(found.quantiles).all()


@pytest.mark.parametrize(
    "wrong",
    [
        (-1, 0.5, 1.0, 1.0),
        (0, 1.5, 1.0, 1.0),
        (0, float("nan"), 1.0, 1.0),
        (0, 0.5, 0.0, 1.0),
        (0, 0.5, 1.0, 0.0),
    ],
)
def test_rejects_invalid_hints(wrong: tuple[int, float, float, float]) -> None:
    with pytest.raises(BadHorizon, match="must"):
        Hint(*wrong)


def test_rejects_a_hint_for_an_unknown_row() -> None:
    with pytest.raises(BadHorizon, match="row 9"):
        with_hints(PLAIN, [Hint(row=9, probability=0.5, within_s=1.0)], HORIZON)
