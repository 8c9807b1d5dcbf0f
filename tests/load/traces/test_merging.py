from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from load.traces.batches import even_batches
from load.traces.merging import merged
from tests.load.rows import column, rows, trace_of

if TYPE_CHECKING:
    import pyarrow as pa

_TIMES = st.lists(st.integers(0, 50).map(float), max_size=20)


def _in_batches(at_s: list[float], cuts: list[int], model: str) -> list[pa.RecordBatch]:
    at_s = sorted(at_s)
    bounds = [0, *sorted(min(cut, len(at_s)) for cut in cuts), len(at_s)]
    parts = [at_s[a:b] for a, b in itertools.pairwise(bounds)]
    return trace_of(*parts, model=model)


@given(st.lists(st.tuples(_TIMES, st.lists(st.integers(0, 20), max_size=4)), max_size=5))
def test_keeps_all_arrivals_of_all_traces_sorted(
    made: list[tuple[list[float], list[int]]],
) -> None:
    traces = [_in_batches(at_s, cuts, f"m{index}") for index, (at_s, cuts) in enumerate(made)]
    found = rows(merged(traces))
    assert column(found, "at_s") == sorted(at for at_s, _ in made for at in at_s)
    for index, (at_s, _) in enumerate(made):
        own = [row for row in found if row["model"] == f"m{index}"]
        assert column(own, "input_size") == list(range(len(at_s)))


@given(_TIMES, st.integers(1, 7))
def test_even_batches_have_one_size_but_the_last(at_s: list[float], size: int) -> None:
    trace = [batch for at in sorted(at_s) for batch in trace_of([at])]
    sizes = [batch.num_rows for batch in even_batches(trace, size)]
    assert sum(sizes) == len(at_s)
    assert all(each == size for each in sizes[:-1])
    assert all(0 < each <= size for each in sizes)


def test_a_dense_trace_does_not_wait_for_a_sparse_one() -> None:
    dense = ([float(at)] for at in range(1000))
    taken: list[float] = []

    def recorded() -> object:
        for at_s in dense:
            taken.append(at_s[0])
            yield from trace_of(at_s)

    result = merged([recorded(), trace_of([0.5, 900.0])])  # type: ignore[list-item]
    for _ in range(10):
        next(result)
    assert len(taken) <= 12
