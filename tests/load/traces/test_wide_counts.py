"""One row per function, one column per minute: turned into order of time by way of the disk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from load.traces.expansion import Cells
from load.traces.formats.external_sort import by_hour
from tests.load.rows import named, write

if TYPE_CHECKING:
    from pathlib import Path

_CELL = st.tuples(st.integers(0, 300), st.integers(0, 9), st.integers(1, 9))


@given(st.lists(st.lists(_CELL, max_size=20), max_size=5))
def test_cells_come_back_hour_by_hour(blocks: list[list[tuple[int, int, int]]]) -> None:
    made = [
        Cells(
            np.array([minute * 60.0 for minute, _, _ in block]),
            np.array([function for _, function, _ in block], np.int32),
            np.array([count for _, _, count in block], np.int64),
        )
        for block in blocks
    ]
    found = []
    for cells in by_hour(made):
        assert len(set(cells.start_s // 3600.0)) == 1
        found += list(zip(cells.start_s // 60, cells.function, cells.count, strict=True))
    assert [cell[:2] for cell in found] == sorted(cell[:2] for cell in found)
    assert Counter(found) == Counter(cell for block in blocks for cell in block)


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
