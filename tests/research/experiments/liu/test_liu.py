"""Liu 2025, chapter 6, simulated: the results that the thesis states."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from research.demo import FIXED_POLICIES, THESIS_SLEEP_S, WIN_SCENARIOS, SimpleRun, WinScenario
from research.experiments.harness.experiment import ExperimentError, Result, Settings
from research.experiments.harness.live_platform import LivePlatform
from research.experiments.liu import simple, wins
from research.experiments.liu.amortisation import amortise, amortised
from research.experiments.liu.figures import cold_and_warm_s, draw_figures
from research.experiments.liu.mixture import OWN_WINNER, MixtureTask, simulate_mixture
from research.experiments.liu.simulated import ModelTimings, scenario_timings, simple_run, win_run
from research.experiments.liu.sizes import ABSENT, SIZES, THESIS_FILE, SizeTask

QUICK = Settings(is_quick=True)


def column(result: Result, table: int, name: str) -> list[object]:
    found = result.tables[table]
    return [row[found.columns.index(name)] for row in found.rows]


def test_colocation_has_one_cold_start_and_random_one_per_machine() -> None:
    random = simple_run("t5-small", ModelTimings(3.0, 1.0), "random", 1, requests=10)
    assert random.cold_starts == len({response.pod for response in random.answers})
    colocation = simple_run("t5-small", ModelTimings(3.0, 1.0), "colocation", 1, requests=10)
    assert colocation.cold_starts == 1
    assert colocation.total_s == pytest.approx(13.0)


def test_simple_runs_without_the_thesis_and_without_a_platform() -> None:
    result = simple.run(QUICK)
    assert ABSENT in result.notes
    assert set(column(result, 0, "cold starts: Liu")) == {None}
    assert all(isinstance(saved, float) and saved > 0 for saved in column(result, 1, "simulated s"))


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ExperimentError, match="must be one of t5-small, t5-base, t5-large, was"):
        simple.run(Settings(is_quick=True, models=("t5-huge",)))


def test_figures_are_drawn(tmp_path: Path) -> None:
    runs = {
        (size.model, policy): [simple_run(size.model, size.times, policy, 1, requests=10)]
        for size in SIZES
        for policy in ("random", "colocation")
    }
    drawn = draw_figures({"simulated": runs, "live": {}}, {22: 29.43, 23: 16.64}, tmp_path)
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_cold_starts_are_amortised_at_the_break_even_of_the_thesis() -> None:
    size = SIZES[0]
    found = amortise(SizeTask(size, "", 1, requests=2_200))
    assert found.below_at == size.break_even_requests + 1
    assert found.before_s - found.after_s == pytest.approx(21.0)


def test_figures_of_the_thesis_are_in_the_tables(tmp_path: Path) -> None:
    with (tmp_path / THESIS_FILE).open("w", newline="") as file:
        csv.writer(file).writerows([["id", "value"], [22, "29.43"], [23, 16.64], [2, "4-5"]])
    result = simple.run(Settings(is_quick=True, data=tmp_path))
    assert column(result, 0, "total s: Liu")[:2] == [29.43, 16.64]
    assert ABSENT not in result.notes


def test_a_file_of_figures_without_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / THESIS_FILE).write_text("id,claim\n1,x\n")
    with pytest.raises(ExperimentError, match="must have the columns id and value"):
        simple.run(Settings(is_quick=True, data=tmp_path))


@pytest.mark.parametrize("scenario", WIN_SCENARIOS, ids=lambda each: each.section)
def test_each_workload_has_the_winner_of_the_thesis_and_auto_equals_it(
    scenario: WinScenario,
) -> None:
    times = scenario_timings(scenario, ModelTimings(3.0, 1.0))
    seconds = {
        policy: win_run(scenario, times, policy, 1, sleep_s=THESIS_SLEEP_S).concurrent_s
        for policy in (*FIXED_POLICIES, "auto")
    }
    fixed = {policy: seconds[policy] for policy in FIXED_POLICIES}
    assert min(fixed, key=fixed.__getitem__) == scenario.winner
    assert seconds["auto"] <= fixed[scenario.winner] + 0.01


def test_a_mixture_is_the_same_for_the_same_seed() -> None:
    task = MixtureTask("auto", 0.2, seed=3, pairs=20, base=ModelTimings(3.0, 1.0))
    assert simulate_mixture(task) == simulate_mixture(task)


def test_wins_compares_all_policies_on_the_mixture() -> None:
    result = wins.run(QUICK)
    assert set(column(result, -1, "policy")) == {*FIXED_POLICIES, "auto", OWN_WINNER}
    fastest = column(result, 0, "fastest of the fixed, simulated")
    won = [row[1] for row, mark in zip(result.tables[0].rows, fastest, strict=True) if mark]
    assert won == [scenario.winner for scenario in WIN_SCENARIOS]


def test_wins_draws_the_stages_and_sums_them(tmp_path: Path) -> None:
    result = wins.run(Settings(is_quick=True, out=tmp_path))
    assert [image.read_bytes()[:4] for image in result.images] == [b"\x89PNG"]
    stages = result.tables[1]
    assert {row[0] for row in stages.rows} == {"6.4", "6.5", "6.6"}
    for _figure, _kind, _policy, *stages_s, whole_s in stages.rows:
        assert sum(float(each or 0) for each in stages_s) == pytest.approx(whole_s, abs=0.01)
    [queue_s] = [row[3] for row in stages.rows if row[::2][:2] == ("6.4", "colocation-queueing")]
    assert queue_s == pytest.approx(4.5)  # the thesis: about 5 s


def test_live_sequences_are_amortised_after_the_expected_number() -> None:
    rng = np.random.default_rng(1)
    before = np.full(300, 0.3) + rng.normal(0, 0.01, 300)
    after = np.full(300, 0.3)
    before[[0, 1, 2, 4, 7, 9, 14, 20]] += 2.0
    after[0] += 2.0
    assert amortised(before, after, 0.1).below_at == pytest.approx(7 * 2.0 / 0.1, abs=3)
    assert amortised(after, after, 0.1).below_at == 1


def test_cold_starts_and_inferences_of_live_runs() -> None:
    runs = [simple_run("t5-small", ModelTimings(3.0, 1.0), "random", 1, requests=10)]
    assert cold_and_warm_s(runs) == pytest.approx((3.0, 1.0))
    assert cold_and_warm_s([]) is None


class LiveOfSimulations:
    """The simulator as a live platform of three models."""

    def simple(
        self, model: str, plan: Sequence[tuple[str, int]], *, requests: int, link_bytes_per_s: float
    ) -> list[SimpleRun]:
        assert link_bytes_per_s == 100e6
        times = next(size.times for size in SIZES if size.model == model)
        return [simple_run(model, times, *each, requests=requests) for each in plan]


def test_live_part_measures_amortisation_and_cold_starts(tmp_path: Path) -> None:
    live = cast("LivePlatform", LiveOfSimulations())
    result = simple.run(Settings(seeds=(1,), live=live, out=tmp_path))
    [row] = result.tables[-1].rows
    assert row[:4] == ("t5-small", 3.0, 210, 211)
    cold_starts = result.tables[-2]
    assert [row[4:6] for row in cold_starts.rows[:2]] == [(3.0, 1.0), (None, None)]
    assert cold_starts.rows[-1][0] == "t5-3b"
