"""When a figure of the guard fails, and what is recorded."""

import pytest

from benchmarks.guard.comparison import Known, Measured, known_of, problem, problems_of, table

KNOWN = {"decision": Known(2.0, 0.05)}


def calm(ratio: float) -> Measured:
    return Measured((ratio,) * 16)


def test_a_disturbed_burst_does_not_matter() -> None:
    disturbed = Measured((2.0,) * 15 + (40.0,))
    assert disturbed.ratio == disturbed.least == 2.0


@pytest.mark.parametrize(
    ("ratio", "fails"),
    [
        pytest.param(1.0, False, id="better"),
        pytest.param(2.0, False, id="as recorded"),
        pytest.param(2.29, False, id="worse by less than spread and margin"),
        pytest.param(2.31, True, id="worse by more"),
    ],
)
def test_a_figure_fails_beyond_its_spread_and_ten_percent(*, ratio: float, fails: bool) -> None:
    assert bool(problem("decision", calm(ratio), KNOWN)) is fails


def test_the_surer_the_more_pairs() -> None:
    """Of 16 pairs three may be below the median by chance, of 32 nine."""
    assert Measured(tuple(range(16))).least == 3
    assert Measured(tuple(range(32))).least == 9
    assert Measured((1.0, 2.0)).least == 1.0


def test_pairs_that_scatter_do_not_fail_by_chance() -> None:
    scattered = Measured((1.9,) * 6 + (3.0,) * 10)
    assert scattered.ratio == 3.0
    assert not problem("decision", scattered, KNOWN)
    assert problem("decision", Measured((1.9,) * 3 + (3.0,) * 13), KNOWN)


def test_a_failure_says_figure_value_and_allowed() -> None:
    found = problem("decision", calm(2.5), KNOWN)
    assert found == "decision is 2.500 times its yardstick (surely above 2.500), allowed 2.300"


def test_a_figure_that_is_not_recorded_fails() -> None:
    assert "use --write" in problem("load", calm(1.0), KNOWN)


def test_a_recorded_figure_that_is_not_measured_fails() -> None:
    assert problems_of({}, KNOWN) == ["guard.json has decision, which is not measured: use --write"]
    assert problems_of({"decision": calm(2.0)}, KNOWN) == []


def test_the_spread_is_the_range_of_the_runs() -> None:
    assert known_of([2.1, 1.9, 2.0]) == Known(2.0, 0.1)


def test_the_table_has_a_line_for_each_figure() -> None:
    lines = table({"decision": calm(2.5), "load": calm(1.0)}, KNOWN).splitlines()
    assert lines[2:] == [
        "| decision | 2.500 | 2.500 | 2.000 | 2.300 | WORSE |",
        "| load | 1.000 | 1.000 | - | - | WORSE |",
    ]
