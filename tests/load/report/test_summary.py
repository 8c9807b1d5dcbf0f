"""Summaries of runs small enough to compute by hand."""

from pathlib import Path
from typing import Any

import pytest

from load.report.summary import summarise
from tests.load.report.runs import steady_run


def test_latency_is_from_the_scheduled_time_and_goodput_by_deadline(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param([200, 200, 200, 200], 1.0, id="even"),
        pytest.param([200, 503, 503, 503], 0.25, id="one-of-four"),
        pytest.param([503, 503, 503, 503], None, id="none"),
    ],
)
def test_jains_index(tmp_path: Path, status: list[int], expected: float | None) -> None:
    run = steady_run(tmp_path, tenant=["a", "b", "c", "d"], status=status, deadline_s=[None] * 4)
    assert summarise(run)["fairness"] == expected


def test_run_of_one_request_has_no_rate(tmp_path: Path) -> None:
    found = summarise(steady_run(tmp_path, 1, scheduled_s=[0.004], finished_s=[0.5]))
    assert found["offered_rps"] is None
    assert found["goodput_rps"] == pytest.approx(2.0)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, "3", None])
def test_metadata_that_are_no_numbers_are_ignored(tmp_path: Path, value: object) -> None:
    metadata = {"all_loading_s": value, "wasted_memory_byte_s": value, "trace_s": value}
    run = steady_run(tmp_path, 2, scheduled_s=[0.0, 4.0], metadata=metadata)
    assert (run.all_loading_s, run.wasted_memory_byte_s, run.offered_s) == (None, None, 4.0)


def test_a_streamed_run_has_the_time_to_the_first_token(tmp_path: Path) -> None:
    times: dict[str, Any] = {
        "scheduled_s": [0.0, 1.0],
        "first_byte_s": [0.25, 1.5],
        "finished_s": [3.0, 4.0],
    }
    run = steady_run(tmp_path, 2, metadata={"protocol": "openai"}, **times)
    assert summarise(run)["first_token_s"]["max"] == 0.5
    whole = steady_run(tmp_path, 2, metadata={"protocol": "v2"}, **times)
    assert "first_token_s" not in summarise(whole)


def test_a_streamed_run_has_tokens_per_second(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "scheduled_s": [0.0, 0.0, 0.0],
        "first_byte_s": [1.0, 1.0, 1.0],
        "finished_s": [2.0, 5.0, 1.0],
        "output_size": [11, 9, 1],
        "deadline_s": [None, None, None],
    }
    found = summarise(steady_run(tmp_path, 3, metadata={"protocol": "openai"}, **columns))
    assert found["tokens_per_s"] == pytest.approx(21 / 5)
    assert found["time_per_token_s"]["max"] == pytest.approx(0.5)
    assert found["time_per_token_s"]["p50"] == pytest.approx(0.3)
    embedded = {**columns, "output_size": [0, 0, 0]}
    found = summarise(steady_run(tmp_path, 3, metadata={"protocol": "openai"}, **embedded))
    assert "tokens_per_s" not in found
