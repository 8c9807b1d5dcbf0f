"""Counts read from the registry: all after a restart, each arrival once."""

import time
from collections.abc import Sequence

import pytest

from autoscaler.forecast import DemandForecaster
from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.forecasting.forecasts import Demand
from autoscaler.observe import DemandReader
from registry.domain.model import ModelName
from registry.redis.reports import ArrivalLog
from tests.autoscaler.conftest import Stage, model

NAMES = [model("a").name, model("b").name]


async def _declared(stage: Stage) -> ArrivalLog:
    await stage.registry.put_models([model("a"), model("b")])
    return ArrivalLog(stage.registry)


def _reader(stage: Stage, time_scale: float = 1.0) -> tuple[DemandReader, ObservedDemand]:
    observed = ObservedDemand(Counts(), time_scale=time_scale)
    return DemandReader(stage.registry, observed), observed


def _expected(observed: ObservedDemand, now_s: float, names: Sequence[ModelName]) -> Demand:
    found = observed.forecast_input(now_s, tuple(str(name) for name in names))
    assert found is not None
    return DemandForecaster().forecast(found)


async def test_a_new_reader_reads_back_all_counts(stage: Stage) -> None:
    arrivals = await _declared(stage)
    counts = [(NAMES[0], 3, 0), (NAMES[0], 5, 100), (NAMES[0], 7, 1000), (NAMES[1], 2, 90_000)]
    await arrivals.report("gateway", 1, counts, {})
    (reader, observed), now_s = _reader(stage), time.time()
    await reader.read(now_s, NAMES)
    demand = _expected(observed, now_s, NAMES)
    assert demand.history is not None
    assert demand.history.ten_minutes.sum(axis=1).tolist() == pytest.approx([15, 2], abs=8)
    assert demand.history.minutes.sum() + demand.history.recent.sum() >= 14
    assert now_s - observed.last_arrival_s[NAMES[0]] < 60
    assert not observed.take_arrived(), "earlier arrivals are not new ones for the first plan"


async def test_a_new_reader_finds_the_latest_arrival_of_each_model(stage: Stage) -> None:
    arrivals = await _declared(stage)
    ages_s = {NAMES[0]: (90_000, 5_000, 1_000), NAMES[1]: (1_000_000, 400_000)}
    counts = [(name, 1, age_s) for name, ages in ages_s.items() for age_s in ages]
    await arrivals.report("gateway", 1, counts, {})
    (reader, observed), now_s = _reader(stage), time.time()
    await reader.read(now_s, NAMES)
    assert now_s - observed.last_arrival_s[NAMES[0]] == pytest.approx(1_000, abs=62)
    assert now_s - observed.last_arrival_s[NAMES[1]] == pytest.approx(400_000, abs=602)


async def test_scaled_time_counts_seconds_as_minutes(stage: Stage) -> None:
    arrivals = await _declared(stage)
    await arrivals.report("gateway", 1, [(NAMES[0], 3, 100)], {})
    (reader, observed), now_s = _reader(stage, 60.0), time.time()
    await reader.read(now_s, NAMES)
    history = _expected(observed, now_s, NAMES).history
    assert history is not None
    assert history.minutes.sum(axis=1).tolist() == [3, 0]
    assert 90 <= history.age_minutes[0] <= 400  # seconds, and delays of the test
    found = observed.forecast_input(now_s, tuple(str(name) for name in NAMES))
    assert found is not None
    assert not found.seconds.any()


async def test_late_reports_are_added_once(stage: Stage) -> None:
    arrivals = await _declared(stage)
    reader, observed = _reader(stage)
    await reader.read(time.time(), NAMES)
    for sequence in range(1, 4):
        await arrivals.report("gateway", sequence, [(NAMES[0], 1, 2)], {})
        await reader.read(time.time(), NAMES)
        await reader.read(time.time(), NAMES)
    assert observed.take_arrived() == {NAMES[0]: 3}


@pytest.mark.parametrize("jump_s", [-86_400.0, -400.0, -1.0, 400.0, 30 * 86_400.0])
async def test_tolerates_jumps_of_the_clock(stage: Stage, jump_s: float) -> None:
    arrivals = await _declared(stage)
    (reader, observed), now_s = _reader(stage), time.time()
    await arrivals.report("gateway", 1, [(NAMES[0], 4, 0)], {})
    for at_s in (now_s, now_s + jump_s, now_s):
        await reader.read(at_s, NAMES)
        _expected(observed, at_s, NAMES)
        assert all(last_s <= at_s + 1 for last_s in observed.last_arrival_s.values())


async def test_forgets_deleted_models(stage: Stage) -> None:
    arrivals = await _declared(stage)
    (reader, observed), now_s = _reader(stage), time.time()
    await arrivals.report("gateway", 1, [(NAMES[0], 1, 0), (NAMES[1], 1, 0)], {})
    await reader.read(now_s, NAMES)
    await reader.read(now_s, NAMES[1:])
    assert set(observed.last_arrival_s) == {NAMES[1]}
    demand = _expected(observed, now_s, NAMES[1:])
    assert demand.p_minute.shape == (1,)
