"""Several times what a pod can serve, with deadlines: it keeps serving what it can."""

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from load.simulator.simulation import Simulation
from tests.load.simulator.small_cluster import cluster, records
from tests.load.simulator.traces import trace

TENANTS = ("a", "b", "c", "greedy")
SECONDS, WARM_UP_S = 6.0, 2.0
ONE_ROW_S = 0.02


def pool(slots: int, scale: float) -> Any:
    infer = {1: 1.0, 2: 1.2, 4: 1.5, 8: 2.25}
    times = {rows: f"{round(ONE_ROW_S * scale * 1000 * each)}ms" for rows, each in infer.items()}
    models = [{"name": f"{tenant}/m", "infer": times, "at": {"n": "device"}} for tenant in TENANTS]
    return cluster({"pods": [{"slots": slots}]}, *models, jitter=0.1)


def arrivals(rate: float, seconds: float, deadline_s: float | None) -> Iterator[pa.RecordBatch]:
    """Each tenant's Poisson process."""
    draws, found = random.Random(1), []
    for tenant in TENANTS:
        at_s = draws.expovariate(rate / len(TENANTS))
        while at_s < seconds:
            found.append((at_s, tenant))
            at_s += draws.expovariate(rate / len(TENANTS))
    found.sort()
    return trace(
        [(at_s, "m") for at_s, _ in found],
        deadline_s=deadline_s,
        tenants=[tenant for _, tenant in found],
    )


def goodput(plan: Any, rate: float, deadline_s: float | None, scale: float) -> float:
    """Requests per second that are served in time."""
    seconds, warm_up_s = SECONDS * scale, WARM_UP_S * scale
    found = records(Simulation(plan, arrivals(rate, seconds, deadline_s)))
    good = [
        row for row in found if row["status"] == 200 and warm_up_s <= row["finished_s"] <= seconds
    ]
    return len(good) / (seconds - warm_up_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "scale", "deadline_s"),
    [
        pytest.param(8, 1.0, 1.0, id="deadline-of-50-inferences"),
        pytest.param(8, 1.0, 0.2, id="deadline-of-10-inferences"),
        pytest.param(8, 4.0, 1.0, id="slow-model"),
    ],
)
def test_goodput_stays_at_the_capacity_under_overload(
    slots: int, scale: float, deadline_s: float
) -> None:
    plan = pool(slots, scale)
    capacity = goodput(plan, 200 / scale, None, scale)
    for multiple in (2, 10):
        assert goodput(plan, multiple * capacity, deadline_s, scale) >= 0.9 * capacity


def test_small_requests_are_served_beside_slow_large_ones_of_their_model() -> None:
    """Large ones, 1.4 s each, come with a deadline that they meet when nothing else runs."""
    model = {"name": "m", "infer": {1: "20ms", 64: "1400ms"}, "at": {"n": "device"}}
    plan = cluster({"pods": [{"slots": 8}]}, model)
    large = [(3.0 * number, 64) for number in range(33)]
    small = [(98.0 + 0.05 * number, 1) for number in range(5)]
    rows = large + small
    arrived = trace(
        [(at_s, "m") for at_s, _ in rows],
        items=[items for _, items in rows],
        deadline_s=[2.0 if items > 1 else 0.5 for _, items in rows],
    )
    found = [row for row in records(Simulation(plan, arrived)) if row["input_size"] == 1]
    assert [row["status"] for row in found] == [200] * len(small)
