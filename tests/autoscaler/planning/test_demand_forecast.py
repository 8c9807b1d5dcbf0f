"""Fitting and forecasting of a pool's demand, and recency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.forecasting.counts import Counts
from autoscaler.forecasting.recency import fit_recency, p_recent
from autoscaler.planning.demand_forecast import HORIZON, fit_model, forecast_demand
from tests.autoscaler.demands import history

NOW_MIN = 2_880


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
    streams = _bursts(20)
    fitted = fit_recency(history(streams, now_min=NOW_MIN - 200))
    expected = came = 0.0
    for minute in range(NOW_MIN - 200, NOW_MIN):
        known = history([[at for at in each if at < minute] for each in streams], now_min=minute)
        expected += float(p_recent(known, fitted).sum())
        came += sum(minute in each for each in streams)
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
