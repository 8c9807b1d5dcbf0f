"""Forecasts of a fixed history are unchanged: optimised code must give the same numbers.

The figures are those of the code before its optimisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from autoscaler.forecasting.arrival_patterns import ArrivalPattern
from autoscaler.forecasting.history import ForecastHorizon
from autoscaler.planning.demand_forecast import fit_model, forecast_demand
from tests.autoscaler.forecasting import streams

if TYPE_CHECKING:
    from autoscaler.forecasting.history import History

HORIZON = ForecastHorizon((10.0, 60.0, 90.0, 3600.0), (0.5, 0.99))

KINDS = ["SPARSE", "PERIODIC", "PERIODIC", "STEADY", "SPARSE", "DEAD", "SPARSE"]
MEANS = [
    [0.002932394, 0.007284329, 0.009646176, 0.2159949],
    [0.5, 3.0, 3.0, 5.479289],
    [0.3349364, 2.009618, 2.344554, 55.59943],
    [0.3459236, 2.075542, 3.090308, 120.7046],
    [0.001915886, 0.01720361, 0.02451853, 0.6494145],
    [0.0003499306, 0.002099583, 0.002716266, 0.002716266],
    [0.00130637, 0.007786632, 0.01163401, 0.3737415],
]
P_ARRIVAL = [
    [0.002932394, 0.007284329, 0.009646176, 0.2040007],
    [0.9756552, 0.9977581, 0.9977581, 0.9977581],
    [0.5468203, 0.6265609, 0.6294023, 0.9743184],
    [0.2924241, 0.8744515, 0.9544638, 1.0],
    [0.0005578049, 0.01720361, 0.02451853, 0.4372087],
    [1.870773e-05, 9.066157e-05, 0.0001263091, 0.0001263091],
    [0.00130637, 0.007786632, 0.01163401, 0.3100687],
]
UPPER = [
    [0.0, 0.0, 0.0, 2.0],
    [3.0, 8.0, 8.0, 12.0],
    [2.0, 12.0, 15.0, 276.0],
    [2.0, 6.0, 8.0, 149.0],
    [0.0, 1.0, 1.0, 4.0],
    [0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 1.0, 2.0],
]
P_MINUTE = [0.003869049, 0.9977581, 0.6265609, 0.7617698, 0.01021470, 7.286011e-05, 0.003992239]


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
