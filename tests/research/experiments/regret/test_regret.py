"""The experiment regret: arithmetic of its tables, its file of cells, and a short run."""

from pathlib import Path

import numpy as np
import pytest

from autoscaler.forecasting.forecasts import Demand
from autoscaler.forecasting.history import Forecast, ForecastHorizon
from research.experiments.harness.experiment import CellSelection, ExperimentError, Settings
from research.experiments.regret.cells import drawn_cell
from research.experiments.regret.ratios import against, best_single, by_cell, marks, regrets, spread
from research.experiments.regret.regret import run
from research.experiments.regret.runs import (
    AUTO,
    FIXED,
    IN_ORDER,
    PREDICTIVE,
    WRONG_FORECASTS,
    RegretResult,
    RegretTask,
    scaled,
    simulate,
)


def _result(
    policy: str, cell: int, mean_s: float, p99_s: float = 1.0, missed: float = 0.0
) -> RegretResult:
    return RegretResult(policy, cell, 100, 0, missed, mean_s, mean_s, mean_s, p99_s, 10, 0.0)


def _cells(auto: list[RegretResult]) -> dict[int, dict[str, RegretResult]]:
    """Two cells: colocation is best in the first, remote-proxy in the second."""
    fixed = [
        _result(name, cell, 1.0 if name == best else 2.0, missed=0.10)
        for cell, best in ((0, "colocation"), (1, "remote-proxy"))
        for name in FIXED
    ]
    return {cell: dict(runs) for cell, runs in by_cell([*fixed, *auto]).items()}


def test_regret_is_against_the_best_fixed_policy_of_each_cell() -> None:
    found = _cells([_result(AUTO, 0, 1.5, p99_s=1.2, missed=0.12), _result(AUTO, 1, 0.5)])
    first, second = regrets(found, AUTO)
    assert (first.mean, first.p99) == (1.5, 1.2)
    assert first.missed_points == pytest.approx(2.0)
    assert second.mean == 0.5
    assert [each.mean for each in regrets(found, "colocation")] == [1.0, 2.0]


def test_a_cell_without_all_fixed_policies_is_left_out() -> None:
    runs = [_result(name, 0, 1.0) for name in FIXED[1:]]
    assert by_cell([*runs, _result(AUTO, 0, 1.0)]) == {}


def test_the_best_single_policy_has_the_lowest_geometric_mean() -> None:
    found = _cells([_result(AUTO, 0, 1.5), _result(AUTO, 1, 0.5)])
    assert best_single(found) in {"colocation", "remote-proxy"}  # 1 and 2 each
    assert against(found, AUTO, "colocation") == pytest.approx((1.5 * 0.25) ** 0.5 - 1)


def test_spread_counts_cells_beyond_each_limit() -> None:
    found = spread([1.0, 1.05, 4.0, 0.5], (1.03, 1.08))
    assert found.over == (0.5, 0.25)
    assert (found.median, found.worst) == (1.025, 4.0)
    assert found.geometric_mean == pytest.approx((1.05 * 2.0) ** 0.25)


def test_marks_count_tails_and_deadlines_in_their_own_cells() -> None:
    found = _cells(
        [
            _result(AUTO, 0, 1.05, p99_s=3.0, missed=0.5),
            _result(AUTO, 1, 0.5, p99_s=3.0, missed=0.5),
        ]
    )
    over_3, over_8, tails, missed, single = marks(found, with_deadline={1})
    assert (over_3.found, over_8.found, tails.found, missed.found) == (50, 0, 100, 100)
    assert [each.is_reached for each in (over_3, over_8, tails, missed)] == [0, 1, 0, 0]
    assert single.found == pytest.approx(100 * ((1.05 * 0.25) ** 0.5 - 1))


def test_policies_that_do_not_run_again_are_reused(tmp_path: Path) -> None:
    chosen = CellSelection(numbers=(4,), policies=(*FIXED, AUTO))
    first = run(Settings(seeds=(1,), out=tmp_path, cells=chosen))
    assert {"cells.parquet", "cells.csv"} <= {each.name for each in tmp_path.iterdir()}
    earlier = tmp_path / "cells.parquet"
    again = run(
        Settings(seeds=(1,), cells=CellSelection(numbers=(4,), policies=(AUTO,), reused=earlier))
    )
    assert again.tables == first.tables
    with pytest.raises(ExperimentError, match=r"has the seeds 1, this run has 2"):
        run(Settings(seeds=(2,), cells=CellSelection(numbers=(4,), reused=earlier)))


def test_runs_without_all_fixed_policies_say_why_there_is_no_table() -> None:
    result = run(Settings(seeds=(1,), cells=CellSelection(numbers=(4,), policies=(AUTO,))))
    assert result.tables == ()
    assert "all fixed policies (random, least-loaded" in result.notes[-1]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"must be one of random, .*, was 'fifo'"):
        run(Settings(cells=CellSelection(policies=("fifo",))))


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_wrong_forecasts_expect_another_number_of_arrivals(factor: float) -> None:
    demand = Demand(
        None,
        ForecastHorizon(),
        Forecast(
            mean=np.full((1, 4), 2.0),
            quantiles=np.full((1, 4, 2), 3.0),
            p_arrival=np.full((1, 4), 0.5),
        ),
        np.array([0.2]),
    )
    found = scaled(demand, factor)
    assert found.forecast.mean == pytest.approx(2.0 * factor)
    assert found.forecast.p_arrival == pytest.approx(1 - 0.5**factor)
    assert found.p_minute == pytest.approx(1 - 0.8**factor)


def test_forecasts_ten_times_too_high_change_loads() -> None:
    cell, (too_high, _) = drawn_cell(4), WRONG_FORECASTS
    found = {name: simulate(RegretTask(name, cell, (1,))).loads for name in (PREDICTIVE, too_high)}
    assert found[too_high] != found[PREDICTIVE]


def test_a_queue_in_order_serves_a_cold_model_before_later_warm_requests() -> None:
    cell = drawn_cell(3)
    in_order, warm_first = (
        simulate(RegretTask(name, cell, (1,))) for name in (IN_ORDER, "colocation-queueing")
    )
    assert in_order.loads > warm_first.loads
    assert in_order.mean_s > warm_first.mean_s
