from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.traces.expansion import Cells, Expanded, expand, portions, unit_gaps

_CELL = st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(1, 40))
_CVS = st.none() | st.floats(0.0, 20.0)


def _cells(found: list[tuple[int, int, int]]) -> Cells:
    found = sorted(found)
    return Cells(
        np.array([minute * 60.0 for minute, _, _ in found]),
        np.array([function for _, function, _ in found], np.int32),
        np.array([count for _, _, count in found], np.int64),
    )


def _expand(cells: Cells, cv: float | None, seed: int = 3) -> Expanded:
    return expand(cells, bin_s=60.0, cv=cv, rng=np.random.default_rng(seed))


@given(st.lists(_CELL, max_size=30), _CVS)
def test_keeps_every_count_in_its_bin_and_order(
    found: list[tuple[int, int, int]], cv: float | None
) -> None:
    drawn = _expand(_cells(found), cv)
    assert np.all(np.diff(drawn.at_s) >= 0.0)
    counted: dict[tuple[int, int], int] = {}
    for minute, function, count in found:
        counted[minute, function] = counted.get((minute, function), 0) + count
    seen: dict[tuple[int, int], int] = {}
    for at_s, function in zip(drawn.at_s, drawn.function, strict=True):
        key = (int(at_s // 60.0), int(function))
        seen[key] = seen.get(key, 0) + 1
    assert seen == counted


@given(st.lists(_CELL, max_size=30), _CVS)
def test_same_seed_same_arrivals_however_cut(
    found: list[tuple[int, int, int]], cv: float | None
) -> None:
    cells = _cells(found)
    whole = _expand(cells, cv)
    rng = np.random.default_rng(3)
    parts = [expand(part, bin_s=60.0, cv=cv, rng=rng) for part in portions(cells, 25)]
    at_s = np.concatenate([np.zeros(0), *(part.at_s for part in parts)])
    # Sums of gaps over other parts may differ in the last digit.
    np.testing.assert_allclose(at_s, whole.at_s, rtol=0.0, atol=1e-6)


@given(st.lists(_CELL, max_size=30), st.integers(1, 60))
def test_portions_are_whole_bins_of_a_bounded_size(
    found: list[tuple[int, int, int]], most: int
) -> None:
    cells = _cells(found)
    parts = list(portions(cells, most))
    assert [m for part in parts for m in part.count.tolist()] == cells.count.tolist()
    bins = [set(part.start_s.tolist()) for part in parts]
    assert sum(len(each) for each in bins) == len(set(cells.start_s.tolist()))
    for part in parts:
        last_bin = part.count[part.start_s == part.start_s[-1]].sum()
        assert part.count.sum() - last_bin < most


def test_another_seed_draws_other_times() -> None:
    cells = _cells([(0, 0, 10)])
    assert _expand(cells, None, 1).at_s.tolist() != _expand(cells, None, 2).at_s.tolist()


def test_no_variation_spaces_evenly() -> None:
    drawn = _expand(_cells([(1, 0, 3)]), 0.0)
    assert drawn.at_s.tolist() == pytest.approx([75.0, 90.0, 105.0])


def test_gamma_of_one_is_uniform_in_law() -> None:
    uniform = _expand(_cells([(0, 0, 20_000)]), None).at_s
    gamma = _expand(_cells([(0, 0, 20_000)]), 1.0).at_s
    tenths = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(gamma, tenths), np.quantile(uniform, tenths), atol=1.0)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_mean_one_and_the_variation_asked_for(cv: float) -> None:
    gaps = unit_gaps(200_000, cv, np.random.default_rng(5))
    assert gaps.mean() == pytest.approx(1.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
