"""Utility, right answers and misses of runs with labelled examples, computed by hand."""

from pathlib import Path
from typing import Any

import pytest

from load.report.run import Run
from load.report.summary import summarise_answers
from tests.load.report.runs import steady_run

ANSWERS: dict[str, Any] = {
    "model": ["digits", "digits", "wine", "plain"],
    "variant": ["digits-small", "short-circuit", "wine-large", None],
    "label": [3, 4, 0, None],
    "prediction": [3, 5, 0, None],
    "expected_utility": [0.6, 0.7, 0.9, None],
    "utility": [1.0, 0.0, 0.25, None],
    "scheduled_s": [0.0, 1.0, 2.0, 3.0],
    "sent_s": [0.0, 1.0, 2.0, 3.0],
    "first_byte_s": [0.1, 1.1, 2.3, 3.1],
    "finished_s": [0.1, 1.1, 2.3, 3.1],
    "deadline_s": [0.2] * 4,
}


def answered_run(folder: Path, name: str = "run", **changed: Any) -> Run:
    return steady_run(folder, name=name, **(ANSWERS | changed))


def test_answers_are_summed_up_overall_and_by_application(tmp_path: Path) -> None:
    found = summarise_answers(answered_run(tmp_path))
    assert found is not None
    digits, wine = found.pop("by_application").values()
    assert found == {
        "requests": 3,
        "utility": pytest.approx(1.25 / 3),
        "missed": 1,
        "expected_utility": pytest.approx(2.2 / 3),
        "accuracy": pytest.approx(2 / 3),
        "variants": {"digits-small": 1, "short-circuit": 1, "wine-large": 1},
    }
    assert (digits["utility"], digits["accuracy"], digits["missed"]) == (0.5, 0.5, 0)
    assert (wine["utility"], wine["accuracy"], wine["missed"]) == (0.25, 1.0, 1)


def test_a_request_without_a_response_has_no_utility(tmp_path: Path) -> None:
    lost = answered_run(tmp_path, prediction=[None, 5, 0, None], utility=[0.0, 0.0, 0.25, None])
    found = summarise_answers(lost)
    assert found is not None
    assert found["utility"] == pytest.approx(0.25 / 3)
    assert found["accuracy"] == 0.5  # of those with a response


def test_runs_without_examples_are_left_out(tmp_path: Path) -> None:
    plain = steady_run(tmp_path)
    assert summarise_answers(plain) is None
