"""The experiment sneakpeek on small made-up applications in place of the trained ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from registry.domain.application import SelectionPolicy
from research.experiments.harness.experiment import ExperimentError, Settings
from research.experiments.sneakpeek.claims import OptimumTask, estimation_error, optimum_shares
from research.experiments.sneakpeek.cold_variants import ColdTask, run_cold
from research.experiments.sneakpeek.demo_data import REQUEST_MIX, SIZES, read_applications
from research.experiments.sneakpeek.runs import Task, run_task
from research.experiments.sneakpeek.sneakpeek import run
from research.experiments.sneakpeek.workload import Workload, draw_window

RIGHT = dict(zip(SIZES, (0.6, 0.8, 0.95), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes that are clouds of points, and variants that guess where they are wrong."""
    found = tmp_path_factory.mktemp("applications")
    rng = np.random.default_rng(0)
    for name, mix in REQUEST_MIX.items():
        classes = len(mix)
        for part, count in (("train", 300), ("profile", 400), ("requests", 400)):
            labels = np.arange(count) % classes
            features = rng.standard_normal((count, classes)) + 2.5 * np.eye(classes)[labels]
            predicted = {
                f"predicted {name}-{size}": np.where(
                    rng.random(count) < share, labels, rng.integers(0, classes, count)
                )
                for size, share in RIGHT.items()
            }
            arrays = {
                "features": features.astype(np.float32),
                "labels": labels,
                "projection": np.eye(classes, dtype=np.float32),
                **predicted,
            }
            np.savez(found / f"{name}-{part}.npz", **arrays)  # type: ignore[arg-type]
    return found


def test_windows_have_equal_shares_and_the_stated_deadlines(folder: Path) -> None:
    apps = read_applications(folder)
    load = Workload(requests=60, deadline_s=0.02, deadline_sigma_s=0.03)
    drawn = draw_window(apps, load, np.random.default_rng(1))
    names = [each.application for each in drawn.window.requests]
    assert [names.count(name) for name in REQUEST_MIX] == [20, 20, 20]
    assert min(each.deadline_s for each in drawn.window.requests) == 0.01
    tumours = [each.label for each in drawn.truth.values() if each.application == 1]
    assert tumours.count(0) > tumours.count(1)
    again = draw_window(apps, load, np.random.default_rng(1))
    assert again.window == drawn.window
    copies = draw_window(apps, replace(load, copies=2), np.random.default_rng(1))
    assert len({each.application for each in copies.window.requests}) == 6


def test_scores_are_by_the_true_labels_and_repeat_by_seed(folder: Path) -> None:
    load = Workload(scale=4.0)
    tasks = {
        policy: Task(folder, load, policy, None, seed=3, windows=4)
        for policy in ("max-accuracy-edf", SelectionPolicy.SNEAKPEEK)
    }
    scores = {policy: run_task(task) for policy, task in tasks.items()}
    most, ours = scores.values()
    for score in scores.values():
        assert 0 <= score.utility <= score.accuracy <= 1
        assert abs(score.correct - score.accuracy) < 0.25
    assert most.accuracy > 0.9
    assert ours.utility > most.utility
    assert ours.violation_s < most.violation_s
    assert most.short_circuits == 0
    again = run_task(tasks[SelectionPolicy.SNEAKPEEK])
    assert replace(again, planning_s=0.0) == replace(ours, planning_s=0.0)


def test_looking_at_more_neighbours_estimates_better(folder: Path) -> None:
    for app in read_applications(folder):
        profiled, one, five = (estimation_error(app, k) for k in (None, 1, 5))
        assert five < one
        assert five < profiled


def test_optimal_plans_keep_applications_together_where_swaps_are_dear(folder: Path) -> None:
    load = Workload(requests=5, deadline_s=0.5, deadline_sigma_s=0.0, swap_scale=50.0)
    shares = optimum_shares(OptimumTask(folder, load, seed=1, windows=4))
    assert (shares.together, shares.windows) == (4, 4)


def test_background_loads_gain_what_cold_variants_cost(folder: Path) -> None:
    warm, cold, never = (
        run_cold(ColdTask(folder, scale=4.0, load_s=load_s, seed=1))
        for load_s in (0.0, 2.0, 3600.0)
    )
    assert (warm.loads, never.loads) == (0, 0)
    assert cold.loads >= 3
    assert cold.later > never.later
    assert cold.later == pytest.approx(warm.later, abs=0.05)


def test_a_damaged_folder_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="demo applications cannot be read"):
        read_applications(tmp_path)
    with pytest.raises(ExperimentError, match="run `pilotlight experiment`"):
        run(Settings())


def test_every_figure_has_its_table(folder: Path) -> None:
    result = run(Settings(is_quick=True, applications=folder))
    titles = " ".join(table.title for table in result.tables)
    for figure in ("5", "7", "8", "9", "11a", "11b", "12", "13", "14", "15", "16a", "16b"):
        assert f"Figure {figure}" in titles or f"Figures {figure}" in titles
    assert "optimal plans" in titles
    assert "cold at first" in titles
    assert all(table.rows for table in result.tables)
    assert any("figure 9" in note for note in result.notes)
