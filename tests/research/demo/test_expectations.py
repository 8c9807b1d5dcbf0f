from dataclasses import replace

import pytest

from registry.domain.pod import STAGES
from research.demo import (
    FULL,
    LIU_REDUCTION_RATIO,
    SHORT,
    WIN_SCENARIOS,
    MachineTimes,
    SimpleRun,
    TimedResponse,
    WinRun,
    check_simple,
    check_win,
    keep_faster,
    observed_times,
    percentile_s,
)


def _answer(latency_s: float, start: str = "warm") -> TimedResponse:
    return TimedResponse(
        latency_s, start, "pod-0", "pod-0", "warm", "id", {"infer": latency_s}, None
    )


def _run(policy: str, cold: int, latency_s: float) -> SimpleRun:
    answers = [_answer(latency_s, "remote")] * cold + [_answer(latency_s)] * (10 - cold)
    return SimpleRun(policy, 1, tuple(answers))


def _wins(**seconds: float) -> list[WinRun]:
    return [
        WinRun(WIN_SCENARIOS[0], policy.replace("_", "-"), 1.5, None, value, ())
        for policy, value in seconds.items()
    ]


def test_liu_reports_a_gain_of_43_percent() -> None:
    assert pytest.approx(0.4346, abs=1e-4) == LIU_REDUCTION_RATIO


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile_s([3.0, 1.0, 2.0], 0.95) == 3.0
    assert percentile_s([float(value) for value in range(1, 21)], 0.95) == 19.0


def test_the_simple_workload_needs_one_cold_start_and_the_gain() -> None:
    assert all(
        each.is_met for each in check_simple([_run("random", 5, 2.0)], [_run("colocation", 1, 1.0)])
    )
    assert not any(
        each.is_met for each in check_simple([_run("random", 5, 2.0)], [_run("colocation", 2, 1.5)])
    )


def test_a_workload_needs_its_winner_and_an_equal_auto() -> None:
    won = _wins(colocation=3.0, colocation_queueing=5.0, remote_proxy=4.0, auto=3.1)
    assert [each.is_met for each in check_win(won)] == [True, True]
    lost = _wins(colocation=4.5, colocation_queueing=5.0, remote_proxy=4.0, auto=5.0)
    assert [each.is_met for each in check_win(lost)] == [False, False]


def test_the_faster_of_two_runs_is_kept() -> None:
    first = _wins(colocation=3.0, auto=4.0)
    second = _wins(colocation=3.5, auto=3.2)
    assert [run.concurrent_s for run in keep_faster(first, second)] == [3.0, 3.2]


def test_runs_with_different_sleeps_are_not_compared() -> None:
    first = _wins(colocation=3.0)
    second = [replace(run, sleep_s=3.0, concurrent_s=9.0) for run in first]
    assert keep_faster(first, second) == second


def test_the_pace_takes_the_slowest_load_and_the_median_inference() -> None:
    answers = (
        replace(_answer(1.0, "remote"), stages_s={"load": 2.5, "infer": 0.5}),
        replace(_answer(1.0, "remote"), stages_s={"load": 2.0, "infer": 0.4}),
        replace(_answer(1.0), stages_s={"load": 9.0, "infer": 0.9}),
    )
    [run] = _wins(colocation=3.0)
    assert observed_times([replace(run, answers=answers)]) == MachineTimes(load_s=2.0, infer_s=0.5)


def test_simulated_work_equals_the_sleeps_of_the_thesis() -> None:
    by_section = {scenario.section: scenario.simulated_work(1.5) for scenario in WIN_SCENARIOS}
    assert by_section == {
        "6.4.1": "postprocess=1.5,network=1.5",
        "6.4.2": "network=1.5",
        "6.4.3": "postprocess=1.5",
    }


def test_sleeps_are_those_of_the_thesis_in_full_and_scaled_otherwise() -> None:
    fast, slow = MachineTimes(load_s=0.8, infer_s=0.3), MachineTimes(load_s=1.6, infer_s=0.6)
    assert [each.sleep_s(FULL, slow) for each in WIN_SCENARIOS] == [5.0, 5.0, 5.0]
    assert [each.sleep_s(SHORT, fast) for each in WIN_SCENARIOS] == [1.6, 1.5, 1.5]
    assert [each.sleep_s(SHORT, slow) for each in WIN_SCENARIOS] == [3.2, 1.5, 1.5]


def test_stages_are_those_of_the_design() -> None:
    assert STAGES == ("queue", "load", "preprocess", "infer", "postprocess", "network")
