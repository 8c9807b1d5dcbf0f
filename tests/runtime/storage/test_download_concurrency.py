"""The number of readers of a download, and what one that failed leaves."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import StorageFailed
from runtime.storage.bandwidth import Bandwidth
from runtime.storage.listing import RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import SPAN_BYTES, PartialFile
from runtime.storage.ranged_download import (
    FAST_BYTES_PER_S,
    INITIAL_READERS,
    MAX_READERS,
    ReadRate,
    additional_readers,
    download_ranges,
)

FAST = float(FAST_BYTES_PER_S)


@pytest.mark.parametrize(
    ("now", "before", "link", "more"),
    [
        pytest.param(ReadRate(2, 2 * FAST), None, None, 0, id="fast-alone"),
        pytest.param(ReadRate(2, 0.0), None, None, 2, id="no-byte-yet"),
        pytest.param(ReadRate(4, 0.0), ReadRate(2, 0.0), None, 4, id="still-no-byte"),
        pytest.param(ReadRate(4, FAST), ReadRate(2, FAST / 2), None, 4, id="throughput-doubled"),
        pytest.param(ReadRate(4, FAST), ReadRate(2, FAST), None, 0, id="cpu-is-the-limit"),
        pytest.param(ReadRate(4, 0.8e6), ReadRate(2, 0.1e6), 1e6, 0, id="link-is-the-limit"),
        pytest.param(ReadRate(2, 0.5e6), None, 1e6, 2, id="link-is-not-used-up"),
        pytest.param(ReadRate(12, FAST), None, None, 4, id="up-to-the-maximum"),
        pytest.param(ReadRate(16, 0.0), None, None, 0, id="at-the-maximum"),
    ],
)
def test_adds_readers_while_throughput_grows(
    now: ReadRate, before: ReadRate | None, link: float | None, more: int
) -> None:
    assert additional_readers(now, before, link) == more


@given(per_reader=st.floats(0, FAST * 0.99))
def test_linear_gain_adds_readers_up_to_the_maximum(per_reader: float) -> None:
    readers, before = INITIAL_READERS, None
    while more := additional_readers(now := ReadRate(readers, per_reader * readers), before, None):
        readers, before = readers + more, now
    assert readers == MAX_READERS


@given(total=st.floats(1, FAST * INITIAL_READERS * 0.99))
def test_shared_rate_doubles_readers_once(total: float) -> None:
    first = ReadRate(INITIAL_READERS, total)
    more = additional_readers(first, None, None)
    assert more == INITIAL_READERS
    assert additional_readers(ReadRate(INITIAL_READERS + more, total), first, None) == 0


class Refusing:
    """Opens readers of a store that refuses to send anything."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator["Refusing"]:
        yield self

    def read(self, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        raise StorageFailed("refused")

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("spans", [1, 3])
def test_a_download_that_failed_is_freed_at_once(spans: int, tmp_path: Path) -> None:
    store, file = Refusing(), RemoteFile("m", spans * SPAN_BYTES, "1")
    left = weakref.ref(store)
    gc.disable()
    try:
        with (
            PartialFile(tmp_path / "m", file) as partial,
            Bandwidth(None).use(LoadTicket()) as use,
            contextlib.suppress(StorageFailed),
        ):
            download_ranges(store, partial, use, name="m")
        del store
        assert left() is None
    finally:
        gc.enable()
