"""The spike: all rules serve all of it, and only ours knows of earlier ones."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from load.experiments.elastic.scenario import MADE_WITH, Scenario, spike_arrivals
from load.experiments.elastic.spiking import OURS, RULES, SpikeTask, run_spike, spiked
from load.experiments.spike import HELD_OUT, HELD_OUT_SEEDS, SEEDS

SHORT = Scenario(
    base_rps=10.0, times=8.0, most_pods=30, spike_at_s=10.0, spike_s=30.0, after_s=5.0
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_every_request_of_a_short_spike_is_answered_and_it_ends(rule: str) -> None:
    found = run_spike(SpikeTask(rule, is_known=False, seed=1, scenario=SHORT))
    assert found.failed == 0
    assert 0 < found.late_s < inf
    assert 2 < found.most_pods <= SHORT.most_pods
    assert len(found.p99_s) == SHORT.length_s


def test_the_measures_of_a_run_are_those_of_its_requests() -> None:
    scenario = replace(SHORT, spike_at_s=2.0, spike_s=4.0, after_s=1.0, deadline_s=1.0)
    at_s = np.array([0.5, 2.1, 3.1, 3.2, 4.1, 5.1, 6.5])
    took_s = np.array([9.0, 0.5, 3.0, 0.2, 0.5, 0.9, inf])
    found = spiked(scenario, at_s, took_s, [(second / 2, 3) for second in range(14)])
    assert found.late_s == 2.0  # the second second of the spike is the last one that is late
    assert found.worst_p99_s == 3.0
    assert found.late_share == pytest.approx(1 / 5)
    assert (found.most_pods, found.pod_s, found.failed) == (3, 21.0, 1)
    never = spiked(scenario, at_s, np.where(at_s == 5.1, 2.0, took_s), [(0.0, 3)])
    assert never.late_s == inf


def test_the_spike_grows_as_many_times_as_it_says() -> None:
    at_s = spike_arrivals(MADE_WITH, 1)
    before = (at_s < MADE_WITH.spike_at_s).sum() / MADE_WITH.spike_at_s
    begin = MADE_WITH.spike_at_s
    inside = ((at_s >= begin) & (at_s < begin + MADE_WITH.spike_s)).sum() / MADE_WITH.spike_s
    assert inside / before == pytest.approx(MADE_WITH.times, rel=0.15)


def test_what_is_held_out_is_not_what_the_rules_were_made_with() -> None:
    assert not set(SEEDS) & set(HELD_OUT_SEEDS)
    assert MADE_WITH not in HELD_OUT.values()
    assert len(set(HELD_OUT.values())) == len(HELD_OUT)


@pytest.mark.slow
def test_who_knows_of_earlier_spikes_is_late_for_less() -> None:
    first, known = (run_spike(SpikeTask(OURS, is_known, seed=1)) for is_known in (False, True))
    assert first.failed == known.failed == 0
    assert known.late_share < first.late_share
