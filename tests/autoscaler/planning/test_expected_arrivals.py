"""Rates of arrival from forecasts."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from autoscaler.planning.expected_arrivals import arrivals_per_s
from autoscaler.tick.rate_publication import PUBLISH_INTERVAL_S, RatePublication
from tests.autoscaler.demands import demand
from tests.autoscaler.pools import model, pod, pool


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
