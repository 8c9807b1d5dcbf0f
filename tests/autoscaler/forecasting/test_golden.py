"""Forecasts of a fixed history are unchanged: optimised code must give the same numbers.

The figures were printed by the code that last changed the forecasts on purpose.
"""

import numpy as np
import pytest

from autoscaler.forecasting.forecasts import fit_model, forecast_demand
from autoscaler.forecasting.history import ForecastHorizon, History
from autoscaler.forecasting.patterns import ArrivalPattern
from tests.autoscaler.forecasting import streams

HORIZON = ForecastHorizon((10.0, 60.0, 90.0, 3600.0), (0.5, 0.99))

KINDS = ["SPARSE", "PERIODIC", "PERIODIC", "STEADY", "SPARSE", "SPARSE", "SPARSE"]
MEANS = [
    [0.003140941, 0.007683887, 0.01008644, 0.2159949],
    [0.5, 3.0, 3.0, 5.479289],
    [0.3349364, 2.009618, 2.344554, 55.59943],
    [0.3500444, 2.100266, 3.125959, 122.0132],
    [0.001915886, 0.01734675, 0.02457093, 0.6494145],
    [0.0007171582, 0.004302949, 0.005598851, 0.005598851],
    [0.001136459, 0.006818755, 0.01022813, 0.3737415],
]
P_ARRIVAL = [
    [0.003140941, 0.007683887, 0.01008644, 0.1966857],
    [0.9756552, 0.9977581, 0.9977581, 0.9977581],
    [0.5468203, 0.6265609, 0.6294023, 0.9743184],
    [0.2953336, 0.8775162, 0.9560575, 1.0],
    [0.0003849608, 0.01734675, 0.02457093, 0.4128029],
    [0.0001100124, 0.0006603028, 0.0009225331, 0.0009225331],
    [0.0009468908, 0.005654573, 0.008457947, 0.2376272],
]
UPPER = [
    [0.0, 0.0, 1.0, 2.0],
    [3.0, 8.0, 8.0, 12.0],
    [2.0, 12.0, 15.0, 276.0],
    [2.0, 6.0, 8.0, 150.0],
    [0.0, 1.0, 1.0, 4.0],
    [0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 4.0],
]
P_MINUTE = [0.003937919, 0.9977581, 0.6265609, 0.8152007, 0.01047738, 0.0001914058, 0.002928156]


def past() -> History:
    """Seven models over sixteen days, without random numbers."""
    minute = np.arange(16 * streams.DAY, dtype=np.int64)
    scattered = minute * minute * 7_919 % 104_729
    hour = minute // 60 % 24
    rows = [
        scattered % 211 == 5,
        (minute % 45 == 0) * 3,
        (scattered // 7 % 300 < 200 * (minute // 170 % 3 == 0)) * (scattered % 9)
        + (minute >= minute.size - 4) * 9,
        1 + scattered % 3,
        (scattered % 61 == 0) & (hour >= 12),
        (minute % 30 == 0) & (minute < 9 * streams.DAY),
        minute == minute.size - 100,
    ]
    return streams.of(np.array(rows).astype(np.uint32))


def test_forecasts_of_a_fixed_history_are_unchanged() -> None:
    known = past()
    names = tuple("abcdefg")
    learnt = fit_model(known, names)
    demand = forecast_demand(known, learnt, HORIZON)
    assert [ArrivalPattern(each).name for each in learnt.fit.patterns.pattern] == KINDS
    found = demand.forecast
    for values, golden in (
        (found.mean, MEANS),
        (found.p_arrival, P_ARRIVAL),
        (found.quantiles[..., 1], UPPER),
        (demand.p_minute, P_MINUTE),
    ):
        assert values.tolist() == [pytest.approx(each, rel=1e-5) for each in golden]
