"""Bursts at regular intervals of seconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecasting.recency import p_next_burst

LENGTH = 301


def _at(*seconds_ago: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    counts = np.zeros((1, LENGTH), dtype=np.uint16)
    for ago in seconds_ago:
        counts[0, LENGTH - 1 - ago] = 1
    return counts


@pytest.mark.parametrize(
    ("seconds_ago", "expected"),
    [
        pytest.param((), 0.0, id="no arrival"),
        pytest.param((10,), 0.0, id="one burst, no interval"),
        pytest.param((30, 10), 0.5, id="one interval"),
        pytest.param((50, 30, 10), 2 / 3, id="two equal intervals"),
        pytest.param((51, 29, 10), 2 / 3, id="two similar intervals"),
        pytest.param((120, 30, 10), 0.5, id="a different interval before"),
        pytest.param((31, 30, 29, 10, 9), 0.5, id="bursts of several seconds"),
        pytest.param((60, 30), 0.5, id="due now"),
        pytest.param((60, 40), 0.0, id="overdue"),
        pytest.param((240, 120), 0.5, id="due now after two minutes"),
        pytest.param((160, 10), 0.0, id="due after the window"),
    ],
)
def test_probability_of_the_next_burst(seconds_ago: tuple[int, ...], expected: float) -> None:
    p = p_next_burst(_at(*seconds_ago), window_s=60.0)[0]
    assert p == pytest.approx(expected)


def test_rows_are_independent() -> None:
    both = np.concatenate([_at(50, 30, 10), _at(), _at(30, 10)])
    assert p_next_burst(both, window_s=60.0) == pytest.approx([2 / 3, 0.0, 0.5])


@given(st.lists(st.lists(st.integers(0, 300), max_size=40), min_size=1, max_size=5))
def test_returns_probabilities(rows: list[list[int]]) -> None:
    p = p_next_burst(np.concatenate([_at(*row) for row in rows]), window_s=60.0)
    assert ((p >= 0) & (p < 1)).all()
