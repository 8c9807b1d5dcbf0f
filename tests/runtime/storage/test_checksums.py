"""Combined checksums of pieces equal those of the whole."""

import random
import zlib

from hypothesis import given
from hypothesis import strategies as st

from runtime.storage.partial_file import combined_crc32


@given(st.lists(st.binary(max_size=2000), max_size=6))
def test_combined_crc32_equals_that_of_the_whole(parts: list[bytes]) -> None:
    combined = combined_crc32((zlib.crc32(part), len(part)) for part in parts)
    assert combined == zlib.crc32(b"".join(parts))


def test_combines_long_parts() -> None:
    data = random.Random(1).randbytes(20_000_000)
    parts = [data[at : at + 8 * 1024**2] for at in range(0, len(data), 8 * 1024**2)]
    assert combined_crc32((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(data)
