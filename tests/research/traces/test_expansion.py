from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.traces.parameters import unit_gaps
from research.traces.counts import BinCounts, ExpandedArrivals, bin_counts, expand, portions

_COUNTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(1, 40)), max_size=30
)
_CVS = st.none() | st.floats(0.0, 20.0)
Found = list[tuple[int, int, int]]


def _bins(found: Found) -> BinCounts:
    minutes, models, counts = np.array(sorted(found), np.int64).reshape(-1, 3).T
    return bin_counts(minutes * 60.0, models, counts)


def _expand(counts: BinCounts, cv: float | None, seed: int = 3) -> ExpandedArrivals:
    return expand(counts, bin_s=60.0, cv=cv, rng=np.random.default_rng(seed))


@given(_COUNTS, _CVS)
def test_keeps_every_count_in_its_bin(found: Found, cv: float | None) -> None:
    drawn = _expand(_bins(found), cv)
    assert np.all(np.diff(drawn.at_s) >= 0.0)
    counted: Counter[tuple[int, int]] = Counter()
    for minute, model, count in found:
        counted[minute, model] += count
    minutes = (drawn.at_s // 60.0).astype(int).tolist()
    assert Counter(zip(minutes, drawn.model.tolist(), strict=True)) == counted


@given(_COUNTS, _CVS)
def test_same_seed_same_arrivals_in_any_portions(found: Found, cv: float | None) -> None:
    counts = _bins(found)
    whole = _expand(counts, cv)
    rng = np.random.default_rng(3)
    parts = [expand(part, bin_s=60.0, cv=cv, rng=rng) for part in portions(counts, 25)]
    at_s = np.concatenate([np.zeros(0), *(part.at_s for part in parts)])
    # Sums of gaps over other parts may differ in the last digit.
    np.testing.assert_allclose(at_s, whole.at_s, rtol=0.0, atol=1e-6)


@given(_COUNTS, st.integers(1, 60))
def test_portions_are_whole_bins_of_a_bounded_size(found: Found, max_arrivals: int) -> None:
    counts = _bins(found)
    parts = list(portions(counts, max_arrivals))
    assert [count for part in parts for count in part["count"]] == counts["count"].tolist()
    bins = [set(part["start_s"]) for part in parts]
    assert sum(map(len, bins)) == len(set(counts["start_s"]))
    for part in parts:
        last_bin = part["count"][part["start_s"] == part["start_s"][-1]].sum()
        assert part["count"].sum() - last_bin < max_arrivals


def test_another_seed_draws_other_times() -> None:
    counts = _bins([(0, 0, 10)])
    assert _expand(counts, None, 1).at_s.tolist() != _expand(counts, None, 2).at_s.tolist()


def test_no_variation_spaces_evenly() -> None:
    drawn = _expand(_bins([(1, 0, 3)]), 0.0)
    assert drawn.at_s.tolist() == pytest.approx([75.0, 90.0, 105.0])


def test_gamma_with_a_variation_of_one_is_uniform() -> None:
    uniform = _expand(_bins([(0, 0, 20_000)]), None).at_s
    gamma = _expand(_bins([(0, 0, 20_000)]), 1.0).at_s
    tenths = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(gamma, tenths), np.quantile(uniform, tenths), atol=1.0)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_mean_one_and_the_requested_variation(cv: float) -> None:
    gaps = unit_gaps(200_000, cv, np.random.default_rng(5))
    assert gaps.mean() == pytest.approx(1.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
