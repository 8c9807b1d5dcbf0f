"""How many readers a download has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.storage.download_concurrency import (
    FAST_BYTES_PER_S,
    FIRST_READERS,
    MOST_READERS,
    ReadRate,
    next_reader_count,
)

FAST = float(FAST_BYTES_PER_S)


@pytest.mark.parametrize(
    ("now", "before", "link", "more"),
    [
        pytest.param(ReadRate(2, 2 * FAST), None, None, 0, id="fast-alone"),
        pytest.param(ReadRate(2, 0.0), None, None, 2, id="no-byte-yet"),
        pytest.param(ReadRate(4, 0.0), ReadRate(2, 0.0), None, 4, id="still-no-byte"),
        pytest.param(
            ReadRate(4, FAST), ReadRate(2, FAST / 2), None, 4, id="twice-as-many-bring-twice"
        ),
        pytest.param(ReadRate(4, FAST), ReadRate(2, FAST), None, 0, id="the-machine-is-the-limit"),
        pytest.param(ReadRate(4, 0.8e6), ReadRate(2, 0.1e6), 1e6, 0, id="the-link-is-the-limit"),
        pytest.param(ReadRate(2, 0.5e6), None, 1e6, 2, id="the-link-has-room"),
        pytest.param(ReadRate(12, FAST), None, None, 4, id="no-more-than-allowed"),
        pytest.param(ReadRate(16, 0.0), None, None, 0, id="all-are-there"),
    ],
)
def test_readers_join_where_they_help(
    now: ReadRate, before: ReadRate | None, link: float | None, more: int
) -> None:
    assert next_reader_count(now, before, link) == more


@given(per_reader=st.floats(0, FAST * 0.99))
def test_readers_that_each_bring_as_much_are_joined_up_to_the_most(per_reader: float) -> None:
    readers, before = FIRST_READERS, None
    while more := next_reader_count(now := ReadRate(readers, per_reader * readers), before, None):
        readers, before = readers + more, now
    assert readers == MOST_READERS


@given(total=st.floats(1, FAST * FIRST_READERS * 0.99))
def test_readers_that_share_one_rate_are_doubled_once(total: float) -> None:
    first = ReadRate(FIRST_READERS, total)
    more = next_reader_count(first, None, None)
    assert more == FIRST_READERS
    assert next_reader_count(ReadRate(FIRST_READERS + more, total), first, None) == 0
