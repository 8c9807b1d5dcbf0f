"""The spike: both rules serve all of it, and only ours knows of earlier ones."""

from __future__ import annotations

from math import inf

import pytest

from load.experiments.elastic.spiking import KNATIVE, MOST_PODS, OURS, SpikeTask, run_spike


@pytest.mark.slow
@pytest.mark.parametrize("rule", [OURS, KNATIVE])
def test_every_request_of_the_spike_is_answered_and_it_ends(rule: str) -> None:
    found = run_spike(SpikeTask(rule, is_known=False, seed=1))
    assert found.failed == 0
    assert 0 < found.late_s < inf
    assert found.most_pods <= MOST_PODS
    assert found == run_spike(SpikeTask(rule, is_known=False, seed=1))


@pytest.mark.slow
def test_who_knows_of_earlier_spikes_is_late_for_less() -> None:
    first, known = (run_spike(SpikeTask(OURS, is_known, seed=1)) for is_known in (False, True))
    assert known.late_share < first.late_share
