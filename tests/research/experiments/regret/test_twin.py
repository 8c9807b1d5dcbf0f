"""The twin switches to a policy that is clearly better, and changes nothing before."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from load.trace_spec import open_trace
from research.experiments.regret.cells import drawn_cell
from research.experiments.regret.runs import cluster, simulation_of
from research.experiments.regret.twin import TwinRun, winner

_EVEN = np.ones(1000)


def test_a_policy_wins_that_is_clearly_better() -> None:
    noise_s = np.random.default_rng(1).exponential(0.1, 1000)
    losses_s = {"auto": 1.0 + noise_s, "other": 0.9 + noise_s}
    assert winner(losses_s, _EVEN, "auto") == "other"
    assert winner(losses_s, _EVEN, "other") == "other"


def test_a_policy_does_not_win_by_chance_or_by_little() -> None:
    one_burst_s = np.where(np.arange(1000) < 50, 3.0, 1.0)
    assert winner({"auto": one_burst_s, "other": np.ones(1000)}, _EVEN, "auto") == "auto"
    assert winner({"auto": np.ones(1000), "other": 0.98 * _EVEN}, _EVEN, "auto") == "auto"


def test_a_run_that_is_too_short_to_compare_is_that_of_auto() -> None:
    cell = drawn_cell(85)
    cell = replace(cell, duration_s=cell.duration_s / 8)
    twin = TwinRun(cluster(cell), open_trace(cell.trace, seed=1), 1, cell.deadline_s)
    found, expected = (
        pa.Table.from_batches(twin),
        pa.Table.from_batches(simulation_of(cell, "auto", 1)),
    )
    assert 0 < len(found) < 500
    assert not twin.switches
    for column in ("request_id", "finished_s", "status"):
        assert found[column].to_pylist() == expected[column].to_pylist()


def test_a_run_switches_where_proxies_hold_the_only_slots() -> None:
    cell = drawn_cell(68)
    twin = TwinRun(cluster(cell), open_trace(cell.trace, seed=1), 1, cell.deadline_s)
    served = pa.Table.from_batches(twin)
    assert [name for _, name in twin.switches][:1] == ["auto-without-proxies"]
    assert served["policy"].to_pylist()[-1] == twin.switches[-1][1]
