"""Loading, loaded and inferring spans of runs small enough to compute by hand."""

from pathlib import Path

import numpy as np
import pytest

from load.report.summary import pod_usages, summarise, union
from tests.load.report.runs import steady_run


def test_load_that_several_requests_wait_for_counts_once(tmp_path: Path) -> None:
    run = steady_run(
        tmp_path,
        scheduled_s=[0.0, 1.0, 5.0, 9.0],
        sent_s=[0.0, 1.0, 5.0, 9.0],
        start=["remote", "remote", "warm", "disk"],
        load_ms=[2000.0, 1000.0, 0.0, 500.0],
        infer_ms=[100.0] * 4,
    )
    [usage] = pod_usages(run)
    assert summarise(run)["loading_s"] == pytest.approx(2.5)
    assert usage.loading.begins.tolist() == [0.0, 9.0]
    assert usage.loaded.begins.tolist() == [2.0, 9.5]
    assert usage.loaded.ends.tolist() == pytest.approx([5.1, 9.6])
    assert usage.inferring.begins.tolist() == [2.0, 5.0, 9.5]


def test_model_warm_at_the_start_is_loaded_from_its_first_use(tmp_path: Path) -> None:
    run = steady_run(
        tmp_path,
        rows=2,
        scheduled_s=[1.0, 3.0],
        sent_s=[1.0, 3.0],
        start=["warm", "host"],
        load_ms=[0.0, 100.0],
        infer_ms=[10.0, 10.0],
    )
    [usage] = pod_usages(run)
    assert usage.loaded.begins.tolist() == pytest.approx([1.0, 3.1])
    assert usage.loaded.ends.tolist() == pytest.approx([1.01, 3.11])


def test_union_of_spans() -> None:
    found = union(np.array([5.0, 0.0, 1.0, 2.5]), np.array([6.0, 2.0, 1.5, 3.0]))
    assert (found.begins.tolist(), found.ends.tolist()) == ([0.0, 2.5, 5.0], [2.0, 3.0, 6.0])
    closed = union(np.array([0.0, 2.5]), np.array([2.0, 3.0]), gap_s=0.5)
    assert (closed.begins.tolist(), closed.ends.tolist()) == ([0.0], [3.0])


def test_refused_request_has_no_inference(tmp_path: Path) -> None:
    [usage] = pod_usages(
        steady_run(
            tmp_path,
            2,
            scheduled_s=[0.0, 5.0],
            sent_s=[0.0, 5.0],
            status=[200, 503],
            infer_ms=[100.0, None],
        )
    )
    assert usage.inferring.begins.tolist() == [0.0]
    assert usage.loaded.ends.tolist() == pytest.approx([0.1])


def test_load_without_inference_has_no_loaded_span(tmp_path: Path) -> None:
    [usage] = pod_usages(
        steady_run(
            tmp_path,
            1,
            scheduled_s=[1.0],
            sent_s=[1.0],
            status=[504],
            start=["remote"],
            load_ms=[2000.0],
            infer_ms=[None],
        )
    )
    assert usage.loading.total_s == pytest.approx(2.0)
    assert (usage.inferring.total_s, usage.loaded.total_s) == (0.0, 0.0)
