"""Time of loads, of runs small enough to compute by hand."""

from pathlib import Path

import pytest

from load.report.summary import summarise
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
    assert summarise(run)["loading_s"] == pytest.approx(2.5)
