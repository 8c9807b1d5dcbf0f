"""The comparison of live and simulated runs, without a live platform."""

from collections import Counter

import pytest

from benchmarks.fidelity.compare import Comparison, Pair, Plan, arrivals, simulated, summary, traces
from benchmarks.fidelity.live import (
    AROUND_S,
    LINK_BYTES_PER_S,
    MODELS,
    FidelityArrival,
    FidelityOutcome,
    ServiceTimes,
)
from registry.domain.model import RoutingPolicy

TIMES = ServiceTimes(infer_s=0.04, load_s={"remote": 2.0}, overhead_s=0.002, model_bytes=90 * 10**6)
PLAN = Plan(seed=1, requests=300)


def known(load_s: float = 2.0) -> list[dict[str, float]]:
    stages_s = {"infer": TIMES.infer_s, "share": TIMES.infer_s}
    stages_s |= {"preprocess": AROUND_S, "postprocess": AROUND_S}
    return [stages_s | {"load:remote": load_s}] * MODELS


@pytest.mark.parametrize("policy", [RoutingPolicy.COLOCATION, RoutingPolicy.AUTO])
def test_a_cold_request_takes_the_load_and_the_stages_of_a_warm_one(policy: RoutingPolicy) -> None:
    outcomes = simulated(arrivals(1, PLAN, TIMES), policy, TIMES, known())
    assert len(outcomes) == PLAN.requests
    min_s = 2 * AROUND_S + TIMES.infer_s + TIMES.overhead_s
    assert min(each.latency_s for each in outcomes) == pytest.approx(min_s)
    assert {each.start for each in outcomes} == {"warm", "remote"}
    cold = [each.latency_s for each in outcomes if each.start == "remote"]
    assert max(cold) >= min_s + 2.0


def test_concurrent_loads_share_the_link_of_their_pod() -> None:
    link_s = TIMES.model_bytes / LINK_BYTES_PER_S
    crowd = [FidelityArrival(0.0, model, 0) for model in range(MODELS)]
    outcomes = simulated(crowd, RoutingPolicy.COLOCATION, TIMES, known())
    by_pod = Counter(each.pod for each in outcomes)
    assert max(by_pod.values()) == 2, "four models on three pods"
    for each in outcomes:
        shared_s = link_s if by_pod[each.pod] == 2 else 0.0
        assert each.stages_s["load"] == pytest.approx(2.0 + shared_s, abs=0.05)


def test_the_simulation_decides_with_the_measurements_of_the_live_registry() -> None:
    trace = arrivals(1, PLAN, TIMES)
    cold_starts = [
        sum(each.start != "warm" for each in simulated(trace, RoutingPolicy.AUTO, TIMES, found))
        for found in (known(load_s=0.01), known(load_s=60.0))
    ]
    assert cold_starts[0] > cold_starts[1]


def test_all_traces_differ() -> None:
    found = traces(Plan(seed=1, requests=5, repeats=3), TIMES)
    assert len({each[0].at_s for each in found}) == 3


def test_percentiles_that_differ_by_more_than_ten_percent_are_marked() -> None:
    live = [FidelityOutcome(1.0, "warm", 0.0)] * 9 + [FidelityOutcome(2.0, "remote", 0.003)]
    near = [FidelityOutcome(1.05, "warm", 0.0)] * 9 + [FidelityOutcome(1.9, "remote", 0.0)]
    far = [FidelityOutcome(1.2, "warm", 0.0)] * 9 + [FidelityOutcome(2.0, "remote", 0.0)]
    pairs = [Pair(RoutingPolicy.AUTO, live, near), Pair(RoutingPolicy.RANDOM, live, far)]
    lines = summary(Comparison(TIMES, pairs)).splitlines()
    assert [line for line in lines if "off" in line] == [
        "| | off | +5.0% | -5.0% | -5.0% | -5.0% | met | |",
        "| | off | +20.0% | +0.0% | +0.0% | +0.0% | over 10% | |",
    ]
