"""The spike: every rule serves it, and the predictive rule uses earlier ones."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from research.experiments.elastic.spike import HELD_OUT, HELD_OUT_SEEDS, SEEDS
from research.experiments.elastic.spike_run import (
    PREDICTIVE,
    RULES,
    SpikeTask,
    measure_spike,
    run_spike,
)
from research.experiments.elastic.spike_scenario import TUNED_WITH, SpikeScenario, spike_arrivals

SHORT = SpikeScenario(
    base_rps=10.0, times=8.0, most_pods=30, spike_at_s=10.0, spike_s=30.0, after_s=5.0
)


@pytest.mark.parametrize("rule", RULES)
def test_every_request_of_a_short_spike_is_served(rule: str) -> None:
    found = run_spike(SpikeTask(rule, is_known=False, seed=1, scenario=SHORT))
    assert found.failed == 0
    assert 0 < found.late_s < inf
    assert 2 < found.most_pods <= SHORT.most_pods
    assert len(found.p99_s) == SHORT.length_s


def test_measures_of_a_run() -> None:
    scenario = replace(SHORT, spike_at_s=2.0, spike_s=4.0, after_s=1.0, deadline_s=1.0)
    at_s = np.array([0.5, 2.1, 3.1, 3.2, 4.1, 5.1, 6.5])
    took_s = np.array([9.0, 0.5, 3.0, 0.2, 0.5, 0.9, inf])
    found = measure_spike(scenario, at_s, took_s, [(second / 2, 3) for second in range(14)])
    assert found.late_s == 2.0  # the second second of the spike is the last one that is late
    assert found.worst_p99_s == 3.0
    assert found.late_share == pytest.approx(1 / 5)
    assert (found.most_pods, found.pod_s, found.failed) == (3, 21.0, 1)
    never = measure_spike(scenario, at_s, np.where(at_s == 5.1, 2.0, took_s), [(0.0, 3)])
    assert never.late_s == inf


def test_the_spike_has_its_factor() -> None:
    at_s = spike_arrivals(TUNED_WITH, 1)
    before = (at_s < TUNED_WITH.spike_at_s).sum() / TUNED_WITH.spike_at_s
    begin = TUNED_WITH.spike_at_s
    inside = ((at_s >= begin) & (at_s < begin + TUNED_WITH.spike_s)).sum() / TUNED_WITH.spike_s
    assert inside / before == pytest.approx(TUNED_WITH.times, rel=0.15)


def test_held_out_scenarios_differ_from_the_tuned_one() -> None:
    assert not set(SEEDS) & set(HELD_OUT_SEEDS)
    assert TUNED_WITH not in HELD_OUT.values()
    assert len(set(HELD_OUT.values())) == len(HELD_OUT)


def test_earlier_spikes_reduce_late_responses() -> None:
    first, known = (
        run_spike(SpikeTask(PREDICTIVE, is_known, seed=1)) for is_known in (False, True)
    )
    assert first.failed == known.failed == 0
    assert known.late_share < first.late_share
