"""The map of winners: who wins a cell, what auto's regret is, and that it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from load.experiments import liu_grid
from load.experiments.experiment import Settings
from load.experiments.liu.simulated import ModelTimings
from load.experiments.liu_grid import CellTask, Won, play_cell

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n"


def test_policies_within_a_hundredth_of_the_best_win_together() -> None:
    won = Won({"colocation": 1.0, "colocation-queueing": 1.009, "remote-proxy": 2.0, "auto": 1.1})
    assert won.winners == "CQ"
    assert won.regret == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        pytest.param(ModelTimings(0.3, 1.0, 5.0, 5.0), "C", id="cold starts are cheap"),
        pytest.param(ModelTimings(30.0, 1.0, 0.0, 5.0), "Q", id="only inference is cheap"),
        pytest.param(ModelTimings(30.0, 1.0, 5.0, 0.0), "P", id="the network is cheap"),
    ],
)
def test_each_policy_wins_a_pair_where_what_it_spends_is_cheap(
    times: ModelTimings, winner: str
) -> None:
    won = play_cell(CellTask(times, "pair", (1,)))
    assert won.winners == winner
    assert won.regret < 0.01


def test_a_stream_is_the_same_for_the_same_seed() -> None:
    task = CellTask(ModelTimings(1.0, 1.0), "stream", (5,))
    assert play_cell(task) == play_cell(task)


def test_the_map_is_told_and_drawn(tmp_path: Path) -> None:
    result = liu_grid.run(Settings(is_quick=True, out=tmp_path))
    assert [path.name for path in result.images] == [
        f"map-{workload}.png" for workload in liu_grid.WORKLOADS
    ]
    assert all(path.read_bytes().startswith(PNG) for path in result.images)
    cells = len(list(liu_grid.cells(is_quick=True)))
    assert [row[1] for row in result.tables[0].rows] == [cells] * len(liu_grid.WORKLOADS)
