"""The grid: winners of a cell, auto's regret, and the maps."""

from pathlib import Path

import pytest

from research.experiments.harness.experiment import Settings
from research.experiments.liu import grid
from research.experiments.liu.grid import WORKLOADS, CellResult, CellTask, cells, simulate_cell
from research.experiments.liu.simulated import ModelTimings

PNG = b"\x89PNG\r\n\x1a\n"


def test_policies_within_one_percent_of_the_best_win_together() -> None:
    result = CellResult(
        {"colocation": 1.0, "colocation-queueing": 1.009, "remote-proxy": 2.0, "auto": 1.1}
    )
    assert result.winners == "CQ"
    assert result.regret == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        pytest.param(ModelTimings(0.3, 1.0, 5.0, 5.0), "C", id="cold starts are cheap"),
        pytest.param(ModelTimings(30.0, 1.0, 0.0, 5.0), "Q", id="only inference is cheap"),
        pytest.param(ModelTimings(30.0, 1.0, 5.0, 0.0), "P", id="the network is cheap"),
    ],
)
def test_each_policy_wins_a_pair_where_its_cost_is_low(times: ModelTimings, winner: str) -> None:
    result = simulate_cell(CellTask(times, "pair", (1,)))
    assert result.winners == winner
    assert result.regret < 0.01


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(ModelTimings(0.3, 0.1, 1.0, 5.0), id="postprocessing"),
        pytest.param(ModelTimings(0.3, 1.0, 0.0, 5.0), id="inference"),
    ],
)
def test_auto_evicts_one_of_many_copies_for_a_cheap_load(times: ModelTimings) -> None:
    assert simulate_cell(CellTask(times, "stream", (1,))).regret < 0.1


def test_a_stream_is_the_same_for_the_same_seed() -> None:
    task = CellTask(ModelTimings(1.0, 1.0), "stream", (5,))
    assert simulate_cell(task) == simulate_cell(task)


def test_maps_are_drawn(tmp_path: Path) -> None:
    result = grid.run(Settings(is_quick=True, out=tmp_path))
    assert [path.name for path in result.images] == [
        f"map-{workload}.png" for workload in WORKLOADS
    ]
    assert all(path.read_bytes().startswith(PNG) for path in result.images)
    count = len(list(cells(is_quick=True)))
    assert [row[1] for row in result.tables[0].rows] == [count] * len(WORKLOADS)
