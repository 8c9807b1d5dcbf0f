"""Tables on a terminal, and sizes and ages in them."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotlight.output import fit, format_age, format_bytes

COLUMNS = ("NAME", "STATUS", "LATENCY")
ROW = ("default/translate", "warm-in-use", "1233.0 ms")
PROGRAM = f"from pilotlight.output import write_table; write_table({COLUMNS!r}, [{ROW!r}])"


def on_a_terminal(width: int) -> list[str]:
    """The lines that a terminal of this width shows."""
    ours, its = os.openpty()
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        stdout=its,
        env={**os.environ, "COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(its)
    sent = b""
    try:
        while piece := os.read(ours, 4096):
            sent += piece
    except OSError:  # Linux reports a closed terminal this way
        pass
    os.close(ours)
    assert program.wait() == 0
    return sent.decode().splitlines()


@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_row_is_one_line_on_a_narrow_terminal(width: int) -> None:
    lines = on_a_terminal(width)
    assert [line for line in lines if all(value in line for value in ROW)]
    assert [line for line in lines if all(name in line for name in COLUMNS)]


def test_rules_are_drawn_on_a_wide_terminal() -> None:
    assert any("━" in line for line in on_a_terminal(200))
    assert not any("━" in line for line in on_a_terminal(40))


def test_a_narrow_table_goes_without_its_optional_columns_first() -> None:
    rows = [["default/translate", "pod-0, pod-1", "warm"], ["a", "-", "cold"]]
    assert fit(("NAME", "PODS", "STATE"), rows, ("PODS",), 40) == (["NAME", "PODS", "STATE"], rows)
    assert fit(("NAME", "PODS", "STATE"), rows, ("PODS",), 30) == (
        ["NAME", "STATE"],
        [["default/translate", "warm"], ["a", "cold"]],
    )
    assert fit(("NAME", "PODS", "STATE"), rows, ("PODS",), 20)[1] == [
        ["default/tra…", "warm"],
        ["a", "cold"],
    ]


@given(
    st.lists(st.lists(st.text(max_size=200), min_size=3, max_size=3), max_size=5),
    st.integers(20, 200),
)
def test_a_fitted_table_is_as_narrow_as_asked(rows: list[list[str]], width: int) -> None:
    columns, fitted = fit(("A", "B", "C"), rows, ("C", "B"), width)
    for row in [columns, *fitted]:
        assert sum(map(len, row)) + 3 * (len(row) - 1) <= width


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param(0, "0 B", id="nothing"),
        pytest.param(1500, "1.5 kB", id="small"),
        pytest.param(242_041_896, "242 MB", id="t5-small"),
    ],
)
def test_formats_sizes(amount: float, expected: str) -> None:
    assert format_bytes(amount) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "0s"),
        (0, "0s"),
        (119.9, "119s"),
        (125, "2m5s"),
        (1800, "30m"),
        (7200, "2h0m"),
        (30_000, "8h"),
        (172_800, "2d"),
    ],
)
def test_formats_ages_as_kubectl(seconds: float, expected: str) -> None:
    assert format_age(seconds) == expected
