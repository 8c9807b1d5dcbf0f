import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.errors import InvalidTrace
from load.traces.batches import even_batches, times_s
from load.traces.blocks import Block, merged, sort_within_window
from tests.load.rows import column, rows, trace_of

_TIMES = st.lists(st.integers(0, 50).map(float), max_size=20)


def _blocks(at_s: list[float], size: int) -> Iterator[Block]:
    for start in range(0, len(at_s), size):
        [batch] = trace_of(at_s[start : start + size], sizes_from=start)
        yield Block("f.csv", 2 + start, batch)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=40), st.integers(1, 10))
def test_sorts_rows_within_the_window(found: list[tuple[int, int]], size: int) -> None:
    at_s = [float(max(at - late, 0)) for at, late in sorted(found)]
    result = rows(sort_within_window(_blocks(at_s, size), window_s=5.0))
    expected = sorted(enumerate(at_s), key=lambda item: item[1])
    assert column(result, "input_size") == [index for index, _ in expected]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_refuses_the_same_row_for_every_block_size(size: int) -> None:
    at_s = [0.0, 10.0, 8.0, 20.0, 14.9, 30.0]
    with pytest.raises(InvalidTrace, match=r"f\.csv, row 6: arrives 5\.1 s before") as caught:
        rows(sort_within_window(_blocks(at_s, size), window_s=5.0))
    assert (caught.value.file, caught.value.row) == ("f.csv", 6)


def test_yields_all_arrivals_before_an_unreadable_row() -> None:
    def broken() -> Iterator[Block]:
        yield from _blocks([0.0, 2.0, 1.0, 3.0], 2)
        raise InvalidTrace("f.csv", 6, "at_s must be a number")

    given_s: list[float] = []
    with pytest.raises(InvalidTrace):
        given_s.extend(
            at_s
            for batch in even_batches(sort_within_window(broken(), window_s=100.0))
            for at_s in times_s(batch)
        )
    assert given_s == [0.0, 1.0, 2.0, 3.0]


def test_holds_only_the_window_in_memory() -> None:
    blocks = _blocks([float(at) for at in range(1000)], 10)
    next(sort_within_window(blocks, window_s=20.0))
    assert next(blocks).first_row <= 2 + 50


def _in_batches(at_s: list[float], cuts: list[int], model: str) -> list[pa.RecordBatch]:
    at_s = sorted(at_s)
    bounds = [0, *sorted(min(cut, len(at_s)) for cut in cuts), len(at_s)]
    parts = [at_s[a:b] for a, b in itertools.pairwise(bounds)]
    return trace_of(*parts, model=model)


@given(st.lists(st.tuples(_TIMES, st.lists(st.integers(0, 20), max_size=4)), max_size=5))
def test_merges_all_arrivals_of_all_traces_by_time(
    made: list[tuple[list[float], list[int]]],
) -> None:
    traces = [_in_batches(at_s, cuts, f"m{index}") for index, (at_s, cuts) in enumerate(made)]
    found = rows(merged(traces))
    assert column(found, "at_s") == sorted(at for at_s, _ in made for at in at_s)
    for index, (at_s, _) in enumerate(made):
        own = [row for row in found if row["model"] == f"m{index}"]
        assert column(own, "input_size") == list(range(len(at_s)))


def test_merging_does_not_read_a_dense_trace_ahead_of_a_sparse_one() -> None:
    taken: list[float] = []

    def dense() -> Iterator[pa.RecordBatch]:
        for at in range(1000):
            taken.append(at)
            yield from trace_of([float(at)])

    result = merged([dense(), trace_of([0.5, 900.0])])
    for _ in range(10):
        next(result)
    assert len(taken) <= 12


@given(_TIMES, st.integers(1, 7))
def test_even_batches_have_one_size_except_the_last(at_s: list[float], size: int) -> None:
    trace = [batch for at in sorted(at_s) for batch in trace_of([at])]
    sizes = [batch.num_rows for batch in even_batches(trace, size)]
    assert sum(sizes) == len(at_s)
    assert all(each == size for each in sizes[:-1])
    assert all(0 < each <= size for each in sizes)
