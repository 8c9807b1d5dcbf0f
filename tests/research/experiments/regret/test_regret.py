"""The experiment regret: arithmetic of its tables, its file of cells, and a short run."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from research.experiments.harness.experiment import CellSelection, ExperimentError, Settings
from research.experiments.regret import cell_file
from research.experiments.regret.ratios import (
    Comparison,
    by_cell,
    compare,
    marks,
    percent,
    pooled,
    regrets,
)
from research.experiments.regret.regret import run
from research.experiments.regret.runs import AUTO, FIXED, RegretResult


def _result(
    policy: str,
    cell: int,
    seed: int,
    mean_s: float,
    p99_s: float = 1.0,
    missed: float = 0.0,
    requests: int = 100,
) -> RegretResult:
    return RegretResult(
        policy, cell, seed, requests, 0, missed, mean_s, mean_s, mean_s, p99_s, 10, 0.0
    )


def _runs(policy: str, cell: int, *means_s: float, missed: float = 0.0) -> list[RegretResult]:
    """One per seed."""
    return [
        _result(policy, cell, seed, mean_s, missed=missed)
        for seed, mean_s in enumerate(means_s, start=1)
    ]


def _fixed(cell: int, best: str, missed: float = 0.10) -> list[RegretResult]:
    """The best policy takes a second in each of three seeds, the others two."""
    return [
        each
        for name in FIXED
        for each in _runs(name, cell, *[1.0 if name == best else 2.0] * 3, missed=missed)
    ]


def test_regret_is_against_the_best_fixed_policy_of_each_cell() -> None:
    cells = by_cell(
        [
            *_fixed(0, "colocation"),
            *_fixed(1, "remote-proxy"),
            *_runs(AUTO, 0, 1.4, 1.5, 1.6, missed=0.12),
            *_runs(AUTO, 1, 0.4, 0.5, 0.6),
        ],
        FIXED,
    )
    first, second = regrets(cells, AUTO, FIXED)
    assert [first.mean.ratio, second.mean.ratio] == pytest.approx([1.5, 0.5])
    assert first.missed.points == pytest.approx(2.0)
    assert second.missed.points == pytest.approx(-10.0)
    assert [each.mean.ratio for each in regrets(cells, "colocation", FIXED)] == [1.0, 2.0]


def test_a_cell_without_all_required_policies_is_left_out() -> None:
    runs = [*_fixed(0, "colocation"), *_runs(AUTO, 0, 1.0, 1.0, 1.0)]
    without = [each for each in runs if each.policy != FIXED[0]]
    assert set(by_cell(runs, FIXED)) == {0}
    assert by_cell(without, FIXED) == {}


def test_runs_are_paired_by_seed_in_whatever_order_they_end() -> None:
    runs = [*_runs("a", 0, 1.0, 5.0, 9.0), *_runs("b", 0, 2.0, 6.0, 10.0)]
    found = by_cell([runs[at] for at in (4, 0, 2, 5, 1, 3)], ())[0]
    worse = compare(found["b"], [found["a"]], "mean_s")
    assert (worse.difference, worse.error) == (1.0, 0.0)  # although seeds differ by eight


def test_a_difference_within_two_standard_errors_may_be_the_seeds() -> None:
    other = _runs("b", 0, 1.0, 1.0, 1.0)
    # Differences 0.1, 0.2, 0.3: standard deviation 0.1, error 0.1 / sqrt(3), 3.5 errors.
    clear = compare(_runs("a", 0, 1.1, 1.2, 1.3), [other], "mean_s")
    assert clear.error == pytest.approx(0.1 / 3**0.5)
    assert (clear.is_worse, clear.is_better) == (True, False)
    # Differences -0.1, 0.2, 0.5: the same mean, three times the error, 1.2 errors.
    unclear = compare(_runs("a", 0, 0.9, 1.2, 1.5), [other], "mean_s")
    assert unclear.ratio == pytest.approx(clear.ratio)
    assert (unclear.is_worse, unclear.is_better) == (False, False)
    better = compare(_runs("a", 0, 0.9, 0.8, 0.7), [other], "mean_s")
    assert (better.is_worse, better.is_better) == (False, True)


def test_one_seed_has_no_error() -> None:
    found = compare(_runs("a", 0, 1.01), [_runs("b", 0, 1.0)], "mean_s")
    assert (found.error, found.is_worse) == (0.0, True)
    equal = compare(_runs("a", 0, 1.0), [_runs("b", 0, 1.0)], "mean_s")
    assert (equal.is_worse, equal.is_better) == (False, False)


def test_seeds_with_more_requests_weigh_more() -> None:
    runs = [_result("a", 0, 1, 1.0, requests=300), _result("a", 0, 2, 2.0, requests=100)]
    assert pooled(runs, "mean_s") == 1.25


def _compared(ratio: float, *, is_clear: bool) -> Comparison:
    return Comparison(ratio, 1.0, 0.0 if is_clear else 9.0, ratio - 1)


def test_a_cell_counts_where_it_is_over_the_limit_and_clearly_worse() -> None:
    found = [
        _compared(1.05, is_clear=True),
        _compared(1.05, is_clear=False),
        _compared(1.02, is_clear=True),
        _compared(0.5, is_clear=True),
    ]
    assert percent(found, lambda each: each.ratio > 1.03) == 25


def test_marks_count_tails_and_deadlines_in_their_own_cells() -> None:
    fixed = [*_fixed(0, "colocation"), *_fixed(1, "colocation"), *_fixed(2, "colocation")]
    auto = [
        *[_result(AUTO, 0, seed, 1.2, p99_s=3.0, missed=0.5) for seed in (1, 2, 3)],
        *[_result(AUTO, 1, seed, 0.5, p99_s=3.0, missed=0.08) for seed in (1, 2, 3)],
        *_runs(AUTO, 2, 0.5, 1.2, 2.2, missed=0.05),  # 30 % worse, 0.6 errors
    ]
    found = {
        each.text.rpartition(",")[0]: each
        for each in marks(regrets(by_cell([*fixed, *auto], FIXED), AUTO, FIXED), {1, 2})
    }
    third = pytest.approx(100 / 3)
    assert {text: (each.found, each.untested) for text, each in found.items()} == {
        "cells with a mean over 3 % worse": (third, pytest.approx(200 / 3)),
        "cells with a mean over 8 % worse": (third, pytest.approx(200 / 3)),
        "mean of the worst cell": (pytest.approx(20), pytest.approx(30)),
        "geometric mean of means": (pytest.approx(100 * ((1.2 * 0.5 * 1.3) ** (1 / 3) - 1)), None),
        "cells with a p99 over 10 % worse": (100, 100),
        "cells with over 1 point more deadlines missed": (0, 0),
        "points of deadlines missed more": (pytest.approx(-3.5), None),
    }
    assert [each.is_reached for each in found.values()] == [0, 0, 0, 0, 0, 1, 1]


def test_the_worst_cell_is_never_worse_with_the_test_than_without() -> None:
    for means_s, expected in (((0.9, 0.9, 0.9), -10), ((0.6, 1.2, 2.1), 0), ((1.2,) * 3, 20)):
        runs = by_cell([*_fixed(0, "colocation"), *_runs(AUTO, 0, *means_s)], FIXED)
        (worst,) = [each for each in marks(regrets(runs, AUTO, FIXED), ()) if "worst" in each.text]
        assert worst.found == pytest.approx(expected)
        assert worst.untested is not None
        assert worst.found <= worst.untested + 1e-9


def test_policies_that_do_not_run_again_are_reused(tmp_path: Path) -> None:
    chosen = CellSelection(numbers=(4,), policies=(*FIXED, AUTO))
    first = run(Settings(seeds=(1,), out=tmp_path, cells=chosen))
    assert {"cells.parquet", "cells.csv"} <= {each.name for each in tmp_path.iterdir()}
    earlier = tmp_path / "cells.parquet"
    again = run(
        Settings(seeds=(1,), cells=CellSelection(numbers=(4,), policies=(AUTO,), reused=earlier))
    )
    assert again.tables == first.tables
    with pytest.raises(ExperimentError, match=r"has the seeds 1, this run has 1, 2"):
        run(Settings(seeds=(1, 2), cells=CellSelection(numbers=(4,), reused=earlier)))


def test_rows_are_kept_by_seed_and_some_seeds_of_a_file_suffice(tmp_path: Path) -> None:
    run(
        Settings(
            seeds=(1, 2), out=tmp_path, cells=CellSelection(numbers=(4,), policies=("random",))
        )
    )
    path = tmp_path / "cells.parquet"
    assert [row["seed"] for row in pq.read_table(path).to_pylist()] == [1, 2]
    assert [each.seed for each in cell_file.read(path, (2,))] == [2]


def test_a_policy_and_a_seed_that_are_named_twice_run_once(tmp_path: Path) -> None:
    twice = CellSelection(numbers=(4,), policies=("random", "random"))
    run(Settings(seeds=(1, 1), out=tmp_path, cells=twice))
    assert len(cell_file.read(tmp_path / "cells.parquet", (1,))) == 1


def test_a_file_of_pooled_seeds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.parquet"
    pq.write_table(pa.table({"cell": [4], "policy": ["auto"], "mean_s": [1.0]}), path)
    with pytest.raises(ExperimentError, match=r"with a row per seed, was .*cells.parquet"):
        cell_file.read(path, (1,))


def test_runs_without_all_fixed_policies_say_why_there_is_no_table() -> None:
    result = run(Settings(seeds=(1,), cells=CellSelection(numbers=(4,), policies=(AUTO,))))
    assert result.tables == ()
    assert "all fixed policies (random, least-loaded" in result.notes[-1]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"must be one of auto, .*, was 'fifo'"):
        run(Settings(cells=CellSelection(policies=("fifo",))))
