"""The comparison of a live platform with its simulation, without the platform."""

from __future__ import annotations

import pytest

from benchmarks.fidelity.compare import Comparison, Pair, Plan, arrivals, simulated, summary
from benchmarks.fidelity.live import AROUND_S, Outcome, ServiceTimes
from registry.model import RoutingPolicy

TIMES = ServiceTimes(infer_s=0.04, load_s={"remote": 2.0}, overhead_s=0.002, model_bytes=90 * 10**6)
PLAN = Plan(seed=1, requests=300)


@pytest.mark.parametrize("policy", [RoutingPolicy.COLOCATION, RoutingPolicy.AUTO])
def test_a_warm_request_takes_its_stages_and_a_cold_one_the_load_besides(
    policy: RoutingPolicy,
) -> None:
    outcomes = simulated(arrivals(PLAN, TIMES), policy, TIMES, PLAN)
    assert len(outcomes) == PLAN.requests
    least_s = 2 * AROUND_S + TIMES.infer_s + TIMES.overhead_s
    assert min(each.latency_s for each in outcomes) == pytest.approx(least_s)
    assert {each.start for each in outcomes} == {"warm", "remote"}
    cold = [each.latency_s for each in outcomes if each.start == "remote"]
    assert max(cold) >= least_s + 2.0


def test_percentiles_that_differ_by_more_than_a_tenth_are_told() -> None:
    live = [Outcome(1.0, "warm", 0.0)] * 9 + [Outcome(2.0, "remote", 0.003)]
    near = [Outcome(1.05, "warm", 0.0)] * 9 + [Outcome(1.9, "remote", 0.0)]
    far = [Outcome(1.2, "warm", 0.0)] * 9 + [Outcome(2.0, "remote", 0.0)]
    pairs = [Pair(RoutingPolicy.AUTO, live, near), Pair(RoutingPolicy.RANDOM, live, far)]
    lines = summary(Comparison(TIMES, pairs)).splitlines()
    assert [line for line in lines if "off" in line] == [
        "| | off | +5.0% | -5.0% | -5.0% | -5.0% | met | |",
        "| | off | +20.0% | +0.0% | +0.0% | +0.0% | over 10% | |",
    ]
