"""The arena: its tables on made-up figures, and the policy that its page enters."""

import re
from pathlib import Path

import pytest

from research.experiments.harness.experiment import CellSelection, ExperimentError, Settings
from research.experiments.regret import cell_file
from research.experiments.regret.arena import PEERS, run
from research.experiments.regret.cells import drawn_cell
from research.experiments.regret.runs import AUTO, PREDICTIVE, RegretResult
from research.experiments.schedulers.scheduler_configs import CLOCKWORK
from tests.plug_ins import install, path_of_plug_ins
from tests.servers import REPOSITORY

_WITH_DEADLINE, _WITHOUT = 8, 10
_SEEDS = (1, 2, 3)


def _result(
    policy: str, cell: int, seed: int, mean_s: float, p99_s: float = 5.0, missed: float = 0.25
) -> RegretResult:
    return RegretResult(policy, cell, seed, 100, 0, missed, mean_s, mean_s, mean_s, p99_s, 20, 0.0)


def _file(folder: Path) -> Path:
    """All take 4 s but `auto` (2 s and 3 s) and `aibrix` (1 s in the second cell)."""
    results = []
    for seed in _SEEDS:
        for name in (AUTO, *PEERS):
            means = {AUTO: (2.0, 3.0), "aibrix": (4.0, 1.0 + seed)}.get(name, (4.0, 4.0))
            p99_s = 10.0 if name == AUTO else 5.0
            results.append(_result(name, _WITH_DEADLINE, seed, means[0], missed=0.5))
            results.append(_result(name, _WITHOUT, seed, means[1], p99_s))
    cells = {number: drawn_cell(number) for number in (_WITH_DEADLINE, _WITHOUT)}
    cell_file.write(folder, cells, results)
    return folder / "cells.parquet"


def test_each_policy_is_beside_the_best_other_one_of_each_cell(tmp_path: Path) -> None:
    chosen = CellSelection(numbers=(_WITH_DEADLINE, _WITHOUT), reused=_file(tmp_path))
    ranking, lost = run(Settings(seeds=_SEEDS, cells=chosen)).tables
    rows = {row[0]: row[1:] for row in ranking.rows}
    assert set(rows) == {AUTO, *PEERS}
    # auto: 2 s over 4 s, 3 s over the 3 s of aibrix (2, 3 and 4 s), twice the p99 of the others.
    assert rows[AUTO] == ("-29.3", None, "+100.0", 50.0, 20.0, 1, 1)
    # aibrix: 4 s over 2 s, 3 s over 3 s; against auto the same.
    assert rows["aibrix"] == ("+41.4", "+41.4", "+0.0", 50.0, 20.0, 0, 0)
    assert rows["knative"] == ("+63.3", "+63.3", "+0.0", 50.0, 20.0, 0, 0)
    assert [row[0] for row in ranking.rows][:2] == [AUTO, "aibrix"]
    assert lost.rows == ()


def test_cells_that_auto_clearly_loses_are_listed(tmp_path: Path) -> None:
    path = _file(tmp_path)
    results = [
        _result(each.policy, each.cell, each.seed, each.seed * 1.04)
        if (each.policy, each.cell) == (AUTO, _WITHOUT)
        else _result(each.policy, each.cell, each.seed, each.seed * 1.0)
        for each in cell_file.read(path, _SEEDS)
        if each.cell == _WITHOUT
    ]
    cell_file.write(tmp_path, {_WITHOUT: drawn_cell(_WITHOUT)}, results)
    chosen = CellSelection(numbers=(_WITHOUT,), reused=path)
    *_, lost = run(Settings(seeds=_SEEDS, cells=chosen)).tables
    assert {row[1] for row in lost.rows} == set(PEERS)
    assert {row[2] for row in lost.rows} == {"+4.0"}


def test_policies_that_ran_in_some_of_the_cells_run_in_all(tmp_path: Path) -> None:
    path = _file(tmp_path)
    results = [
        each
        for each in cell_file.read(path, (1,))
        if (each.policy, each.cell) != (CLOCKWORK, _WITHOUT)
    ]
    results.append(_result(PREDICTIVE, _WITHOUT, 1, 4.0))
    cells = {number: drawn_cell(number) for number in (_WITH_DEADLINE, _WITHOUT)}
    cell_file.write(tmp_path, cells, results)
    chosen = CellSelection(numbers=(_WITH_DEADLINE, _WITHOUT), reused=path)
    ranking, _ = run(Settings(seeds=(1,), cells=chosen)).tables
    assert ranking.title == f"{len(PEERS) + 1} policies in 2 cells"
    (missed,) = [row[4] for row in ranking.rows if row[0] == CLOCKWORK]
    assert missed != 25.0  # that of the file


def test_the_policy_of_the_page_enters_by_its_name(tmp_path: Path) -> None:
    page = (REPOSITORY / "research" / "docs" / "arena.md").read_text()
    blocks = re.findall(r"(?:^(?:    .*)?\n)+", page, re.MULTILINE)
    (block,) = [each for each in blocks if "def stay" in each]
    module = re.sub(r"^    ", "", block, flags=re.MULTILINE)
    assert len(module[module.index("def stay") :].strip().splitlines()) <= 10
    chosen = CellSelection(numbers=(_WITHOUT,), policies=("stay",), reused=_file(tmp_path))
    installed = tmp_path / "installed"
    installed.mkdir()
    install(installed, "mine", "pilotlight.routing", {"stay": "mine:stay"}, module)
    with path_of_plug_ins(installed):
        ranking, _ = run(Settings(seeds=_SEEDS, cells=chosen)).tables
    rows = {row[0]: row[1:] for row in ranking.rows}
    assert set(rows) == {AUTO, *PEERS, "stay"}
    loads_per_100 = rows["stay"][4]
    assert isinstance(loads_per_100, float)
    assert 0 < loads_per_100 < 20  # simulated: it waits for the one copy rather than to load


def test_a_plug_in_that_cannot_be_imported_is_told_before_any_run(tmp_path: Path) -> None:
    install(tmp_path, "mine", "pilotlight.routing", {"stay": "mine:stay"}, "import nothing_there")
    chosen = CellSelection(numbers=(_WITHOUT,), policies=("stay",))
    with path_of_plug_ins(tmp_path), pytest.raises(ExperimentError, match="nothing_there"):
        run(Settings(seeds=(1,), cells=chosen))
