from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.errors import InvalidTrace, UnsortedTrace
from load.traces.batches import even_batches, times
from load.traces.order import Located, in_order
from tests.load.rows import column, rows, trace_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def _located(at_s: list[float], size: int) -> Iterator[Located]:
    for start in range(0, len(at_s), size):
        [batch] = trace_of(at_s[start : start + size], sizes_from=start)
        yield Located("f.csv", 2 + start, batch)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=40), st.integers(1, 10))
def test_puts_right_what_is_within_the_window(found: list[tuple[int, int]], size: int) -> None:
    at_s = [float(max(at - late, 0)) for at, late in sorted(found)]
    result = rows(in_order(_located(at_s, size), window_s=5.0))
    expected = sorted(enumerate(at_s), key=lambda item: item[1])
    assert column(result, "input_size") == [index for index, _ in expected]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_refuses_the_same_row_however_the_file_is_cut(size: int) -> None:
    at_s = [0.0, 10.0, 8.0, 20.0, 14.9, 30.0]
    with pytest.raises(UnsortedTrace, match=r"f\.csv, row 6: arrives 5\.1 s before") as caught:
        rows(in_order(_located(at_s, size), window_s=5.0))
    assert (caught.value.file, caught.value.row) == ("f.csv", 6)


def test_what_comes_before_a_row_that_cannot_be_read_is_given_first() -> None:
    def broken() -> Iterator[Located]:
        yield from _located([0.0, 2.0, 1.0, 3.0], 2)
        raise InvalidTrace("f.csv", 6, "at_s must be a number")

    given_s: list[float] = []
    with pytest.raises(InvalidTrace):
        given_s.extend(
            at_s
            for batch in even_batches(in_order(broken(), window_s=100.0))
            for at_s in times(batch)
        )
    assert given_s == [0.0, 1.0, 2.0, 3.0]


def test_holds_no_more_than_the_window() -> None:
    parts = _located([float(at) for at in range(1000)], 10)
    result = in_order(parts, window_s=20.0)
    next(result)
    assert next(parts).first_row <= 2 + 50
