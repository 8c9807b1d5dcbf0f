"""The burst: every model is loaded once and responds."""

from math import inf
from pathlib import Path

import pytest

from registry.domain.model import RoutingPolicy
from research.experiments.elastic import burst
from research.experiments.elastic.burst_run import LOAD_S, BurstTask, run_burst
from research.experiments.harness.experiment import Settings

FEW = 6


@pytest.mark.parametrize("is_known", [False, True])
def test_every_model_is_loaded_once_and_responds(*, is_known: bool) -> None:
    queueing = RoutingPolicy.COLOCATION_QUEUEING
    task = BurstTask(FEW, seed=1, pod_start_s=2.0, is_known=is_known, routing=queueing)
    found = run_burst(task)
    assert len(found.took_s) == FEW
    assert found.took_s[-1] < inf
    assert found.took_s[0] >= 2.0 + LOAD_S
    assert found.loads == FEW
    assert found == run_burst(task)


@pytest.mark.parametrize("pods", [0, 8])
def test_a_burst_of_many_models_loads_each_once(pods: int) -> None:
    found = run_burst(BurstTask(100, seed=1, pods_before=pods))
    assert (found.loads, found.took_s[-1] < inf) == (100, True)


def test_more_pods_are_started_while_load_times_are_unknown() -> None:
    unknown, known = (run_burst(BurstTask(FEW, seed=1, is_known=each)) for each in (False, True))
    assert unknown.most_pods > known.most_pods >= 1


def test_running_pods_save_their_start_time() -> None:
    none, running = (run_burst(BurstTask(FEW, seed=1, pods_before=each)) for each in (0, 2))
    assert running.took_s[-1] < none.took_s[0]


def test_the_table_has_the_ceilings_of_knative_and_the_plot_is_drawn(tmp_path: Path) -> None:
    result = burst.run(Settings(is_quick=True, out=tmp_path))
    [table] = result.tables
    ceilings = table.columns.index("Knative's p95 at most s")
    assert {row[ceilings] for row in table.rows} == {burst.CEILING_P95_S[25]}
    assert [each.read_bytes()[:4] for each in result.images] == [b"\x89PNG"]
