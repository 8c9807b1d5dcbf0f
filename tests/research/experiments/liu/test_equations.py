"""Liu 2025, section 6.5: the printed equations and our forecasts on the workloads of 6.4."""

import pytest

from gateway.routing.latency_model import proxy_to, run_at, wait_for
from research.demo import FIXED_POLICIES, THESIS_SLEEP_S, WIN_SCENARIOS, WinScenario
from research.experiments.liu.equations import PRINTED, Factors
from research.experiments.liu.simulated import scenario_timings, win_run
from research.experiments.liu.wins import THESIS_PACE
from tests.gateway.cluster_states import NOW_S, Liu, PodSketch, cluster, request

BUSY, IDLE = "pod-a", "pod-b"
PRINTED_S = {"6.4.1": (9, 12, 12), "6.4.2": (4, 2, 7), "6.4.3": (9, 12, 7)}
"""By workload: equations 1, 2 and 3 for the second of the two requests."""
OURS_S = {"6.4.1": (9, 15, 11), "6.4.2": (4, 2, 6), "6.4.3": (9, 12, 7)}
"""The second request behind a first one that runs at a pod with the model."""


def printed(scenario: WinScenario, ongoing: int = 1) -> list[float]:
    times = scenario_timings(scenario, THESIS_PACE)
    factors = Factors(
        times.load_s, times.infer_s, times.postprocess_s, times.network_s, ongoing=ongoing
    )
    return [PRINTED[policy](factors) for policy in FIXED_POLICIES]


def ours(scenario: WinScenario) -> list[float]:
    times = scenario_timings(scenario, THESIS_PACE)
    measured = Liu(times.load_s, times.infer_s, times.postprocess_s, times.network_s).measured
    first = PodSketch(BUSY, "warm" if scenario.is_prewarmed else "loading:remote", busy=1)
    state = cluster(first, PodSketch(IDLE), measured={**measured, "assets": 0.0})
    busy, idle = state.pods[BUSY], state.pods[IDLE]
    forecasts = [
        run_at(idle, request(), state, NOW_S),
        wait_for([busy], request(), state, NOW_S),
        proxy_to(busy, idle, request(), state, NOW_S),
    ]
    return [each.seconds for each in forecasts]


@pytest.mark.parametrize("scenario", WIN_SCENARIOS, ids=lambda each: each.section)
class TestSecondRequest:
    def test_printed_equations(self, scenario: WinScenario) -> None:
        assert printed(scenario) == list(PRINTED_S[scenario.section])

    def test_our_forecasts(self, scenario: WinScenario) -> None:
        assert ours(scenario) == pytest.approx(OURS_S[scenario.section], abs=0.01)

    def test_both_name_the_winner_of_the_thesis(self, scenario: WinScenario) -> None:
        for found in (printed(scenario), ours(scenario)):
            assert FIXED_POLICIES[found.index(min(found))] == scenario.winner

    def test_only_ours_counts_the_load_that_a_queued_request_waits_for(
        self, scenario: WinScenario
    ) -> None:
        times = scenario_timings(scenario, THESIS_PACE)
        policy = "colocation-queueing"
        took_s = win_run(scenario, times, policy, 1, sleep_s=THESIS_SLEEP_S).concurrent_s
        load_s = 0.0 if scenario.is_prewarmed else times.load_s
        assert ours(scenario)[1] == pytest.approx(took_s, abs=0.01)
        assert printed(scenario)[1] == pytest.approx(took_s - load_s, abs=0.01)


def test_equation_1_is_the_time_of_the_queue_if_that_is_longer() -> None:
    """Its second term, which ours leaves out: it is about requests other than the new one."""
    [scenario, *_] = WIN_SCENARIOS
    assert [printed(scenario, ongoing)[0] for ongoing in (0, 1, 2, 3)] == [9, 9, 12, 18]
