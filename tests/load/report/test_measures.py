"""What follows from the records of a run, on runs small enough to reckon by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from load.report.loading import merged, usages
from load.report.plots.tradeoffs import pareto
from load.report.summary import fairness, summarise
from tests.load.report.runs import steady_run

if TYPE_CHECKING:
    from pathlib import Path


def test_latency_counts_from_the_schedule_and_goodput_from_deadlines(tmp_path: Path) -> None:
    run = steady_run(
        tmp_path,
        scheduled_s=[0.0, 1.0, 2.0, 3.0],
        sent_s=[0.0, 1.5, 2.0, None],
        finished_s=[0.1, 1.6, 2.1, None],
        status=[200, 200, 503, 0],
        error=[None, None, "HTTP 503: x", "not sent"],
        deadline_s=[1.0, 0.5, 1.0, None],
    )
    found = summarise(run)
    assert found["latency_s"]["max"] == pytest.approx(0.6)
    assert found["by_status"] == {"0": 1, "200": 2, "503": 1}
    assert (found["ok"], found["with_deadline"], found["deadline_misses"]) == (2, 3, 2)
    assert (found["late_sends"], found["not_sent"]) == (1, 1)
    assert found["offered_rps"] == pytest.approx(4 / 3)
    assert found["goodput_rps"] == pytest.approx(1 / 3)


def test_requests_that_wait_for_one_load_count_it_once(tmp_path: Path) -> None:
    run = steady_run(
        tmp_path,
        scheduled_s=[0.0, 1.0, 5.0, 9.0],
        sent_s=[0.0, 1.0, 5.0, 9.0],
        start=["remote", "remote", "warm", "disk"],
        load_ms=[2000.0, 1000.0, 0.0, 500.0],
        infer_ms=[100.0] * 4,
    )
    [usage] = usages(run)
    assert summarise(run)["loading_s"] == pytest.approx(2.5)
    assert usage.loading.begins.tolist() == [0.0, 9.0]
    assert usage.loaded.begins.tolist() == [2.0, 9.5]
    assert usage.loaded.ends.tolist() == pytest.approx([5.1, 9.6])
    assert usage.inferring.begins.tolist() == [2.0, 5.0, 9.5]


def test_a_model_that_was_warm_before_is_loaded_from_its_first_use(tmp_path: Path) -> None:
    run = steady_run(
        tmp_path,
        rows=2,
        scheduled_s=[1.0, 3.0],
        sent_s=[1.0, 3.0],
        start=["warm", "host"],
        load_ms=[0.0, 100.0],
        infer_ms=[10.0, 10.0],
    )
    [usage] = usages(run)
    assert usage.loaded.begins.tolist() == pytest.approx([1.0, 3.1])
    assert usage.loaded.ends.tolist() == pytest.approx([1.01, 3.11])


def test_stretches_of_time_are_united() -> None:
    found = merged(np.array([5.0, 0.0, 1.0, 2.5]), np.array([6.0, 2.0, 1.5, 3.0]))
    assert (found.begins.tolist(), found.ends.tolist()) == ([0.0, 2.5, 5.0], [2.0, 3.0, 6.0])
    closed = merged(np.array([0.0, 2.5]), np.array([2.0, 3.0]), gap_s=0.5)
    assert (closed.begins.tolist(), closed.ends.tolist()) == ([0.0], [3.0])


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param([200, 200, 200, 200], 1.0, id="even"),
        pytest.param([200, 503, 503, 503], 0.25, id="one-of-four"),
        pytest.param([503, 503, 503, 503], None, id="nobody"),
    ],
)
def test_jains_index(tmp_path: Path, status: list[int], expected: float | None) -> None:
    run = steady_run(tmp_path, tenant=["a", "b", "c", "d"], status=status, deadline_s=[None] * 4)
    assert fairness(run) == expected


def test_the_pareto_front_holds_what_nothing_beats() -> None:
    assert pareto([(1, 9), (2, 5), (3, 6), (4, 1), (2, 5)]) == [0, 1, 3]


def test_a_run_of_one_request_has_no_rate(tmp_path: Path) -> None:
    found = summarise(steady_run(tmp_path, 1, scheduled_s=[0.004], finished_s=[0.5]))
    assert found["offered_rps"] is None
    assert found["goodput_rps"] == pytest.approx(2.0)


@pytest.mark.parametrize("told", [-1.0, float("nan"), float("inf"), True, "3", None])
def test_what_a_run_tells_of_itself_counts_only_where_it_is_a_figure(
    tmp_path: Path, told: object
) -> None:
    about = {"all_loading_s": told, "wasted_memory_byte_s": told, "trace_s": told}
    run = steady_run(tmp_path, 2, scheduled_s=[0.0, 4.0], about=about)
    assert (run.all_loading_s, run.wasted_memory_byte_s, run.offered_s) == (None, None, 4.0)


def test_who_was_refused_did_not_infer(tmp_path: Path) -> None:
    [usage] = usages(
        steady_run(tmp_path, 2, scheduled_s=[0.0, 5.0], sent_s=[0.0, 5.0], status=[200, 503],
                   infer_ms=[100.0, None])
    )  # fmt: skip
    assert usage.inferring.begins.tolist() == [0.0]
    assert usage.loaded.ends.tolist() == pytest.approx([0.1])


def test_a_load_without_an_inference_leaves_nothing_loaded(tmp_path: Path) -> None:
    [usage] = usages(
        steady_run(tmp_path, 1, scheduled_s=[1.0], sent_s=[1.0], status=[504], start=["remote"],
                   load_ms=[2000.0], infer_ms=[None])
    )  # fmt: skip
    assert usage.loading.total_s == pytest.approx(2.0)
    assert (usage.inferring.total_s, usage.loaded.total_s) == (0.0, 0.0)
