"""What a download that failed leaves."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.errors import StorageFailed
from runtime.storage.listing import RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import SPAN_BYTES, PartialFile
from runtime.storage.ranged_download import Bandwidth, download_ranges


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
            download_ranges(store, partial, use, name="m", readers=2)
        del store
        assert left() is None
    finally:
        gc.enable()
