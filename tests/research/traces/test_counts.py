"""Azure 2019, a row per function and a column per minute, sorted by time on disk."""

from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from research.traces.counts import bin_counts
from research.traces.readers import sort_by_hour
from tests.load.rows import named, write

_COUNT = st.tuples(st.integers(0, 300), st.integers(0, 9), st.integers(1, 9))


@given(st.lists(st.lists(_COUNT, max_size=20), max_size=5))
def test_counts_are_sorted_hour_by_hour(blocks: list[list[tuple[int, int, int]]]) -> None:
    made = [
        bin_counts(minutes * 60.0, models, counts)
        for minutes, models, counts in (
            np.array(block, np.int64).reshape(-1, 3).T for block in blocks
        )
    ]
    found = []
    for hour in sort_by_hour(made):
        assert len(set(hour["start_s"] // 3600.0)) == 1
        found += list(zip(hour["start_s"] // 60, hour["model"], hour["count"], strict=True))
    assert [count[:2] for count in found] == sorted(count[:2] for count in found)
    assert Counter(found) == Counter(count for block in blocks for count in block)


def test_a_whole_day_keeps_every_count(tmp_path: Path) -> None:
    counts = np.random.default_rng(1).poisson(0.02, (60, 1440))
    header = ",".join(
        ["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, 1441))]
    )
    lines = [f"o{i % 7},a,f{i},http,{','.join(map(str, row))}" for i, row in enumerate(counts)]
    path = write(tmp_path / "d01.csv", "\n".join([header, *lines]) + "\n")
    seen = np.zeros_like(counts)
    for row in named(str(path)):
        function = int(row["model"][1:])
        assert row["tenant"] == f"o{function % 7}"
        seen[function, int(row["at_s"] // 60)] += 1
    assert np.array_equal(seen, counts)
