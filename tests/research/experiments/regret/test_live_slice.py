"""The live cells of the experiment regret: their requests, measured times and ranks."""

import pytest

from registry.domain.model import RoutingPolicy, Tier
from research.demo import TimedResponse
from research.experiments.regret.live_slice import (
    LIVE_CELLS,
    LiveRun,
    are_ranks_alike,
    live_times,
    simulated_latencies_s,
)

CELL = LIVE_CELLS[0]


def _response(start: str, load_s: float) -> TimedResponse:
    stages_s = {"load": load_s, "preprocess": 0.05, "infer": 0.02, "postprocess": 0.05}
    return TimedResponse(
        sum(stages_s.values()) + 0.01, start, "pod-0", "pod-0", "warm", "1", stages_s, None
    )


def test_there_are_six_cells_and_each_has_its_requests() -> None:
    assert len(LIVE_CELLS) == 6
    for each in LIVE_CELLS:
        requests = each.requests()
        assert len(requests) == 150
        assert {model for _, model in requests} <= {spec.name.name for spec in each.specs()}


def test_times_are_medians_and_a_tier_without_loads_gets_the_longest() -> None:
    responses = [_response("warm", 0.0), _response("remote", 1.5), _response("host", 0.1)]
    times = live_times([LiveRun(RoutingPolicy.AUTO, tuple(responses), {})])
    assert times.infer_s == 0.02
    assert times.overhead_s == pytest.approx(0.01)
    assert times.load_s == {Tier.REMOTE: 1.5, Tier.DISK: 1.5, Tier.HOST: 0.1}


def test_the_same_requests_are_simulated() -> None:
    responses = tuple(_response("warm" if each else "remote", 0.2) for each in range(150))
    run = LiveRun(RoutingPolicy.COLOCATION_QUEUEING, responses, {})
    found = simulated_latencies_s(CELL, run, live_times([run]))
    assert len(found) == 150
    assert found.min() == pytest.approx(0.13, abs=0.01)
    assert found[0] == pytest.approx(0.33, abs=0.02)


def test_ranks_are_alike_unless_a_clear_difference_is_reversed() -> None:
    assert are_ranks_alike([1.0, 1.04, 2.0], [1.1, 1.0, 1.8])
    assert not are_ranks_alike([1.0, 1.5], [1.2, 1.1])
