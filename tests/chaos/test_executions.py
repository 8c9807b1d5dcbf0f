"""What counts as executed twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.executions import executed_twice, read_ledger

if TYPE_CHECKING:
    from pathlib import Path

TWICE = "begin 1.0 7 r\nend 2.0 7 r\nbegin 5.0 8 r\nend 6.0 8 r\n"


def twice(tmp_path: Path, ledger: str, pods_gone_s: list[float]) -> list[str]:
    path = tmp_path / "ledger"
    path.write_text(ledger)
    return executed_twice(read_ledger(path), pods_gone_s)


def test_two_living_pods_are_one_too_many(tmp_path: Path) -> None:
    assert len(twice(tmp_path, TWICE, [])) == 1
    assert len(twice(tmp_path, TWICE, [9.0])) == 1


def test_a_pod_that_was_gone_before_the_second_does_not_count(tmp_path: Path) -> None:
    assert twice(tmp_path, TWICE, [4.0]) == []


def test_the_end_of_a_pod_before_or_after_both_does_not_excuse_it(tmp_path: Path) -> None:
    assert len(twice(tmp_path, TWICE, [0.5, 9.0])) == 1


def test_an_inference_without_outputs_does_not_count(tmp_path: Path) -> None:
    assert twice(tmp_path, TWICE.replace("end 2.0 7 r\n", ""), []) == []


def test_the_same_pod_twice_is_one_too_many(tmp_path: Path) -> None:
    assert len(twice(tmp_path, TWICE.replace(" 8 ", " 7 "), [])) == 1


def test_the_same_pod_may_infer_again_once_the_entry_pod_is_gone(tmp_path: Path) -> None:
    assert twice(tmp_path, TWICE.replace(" 8 ", " 7 "), [4.0]) == []
