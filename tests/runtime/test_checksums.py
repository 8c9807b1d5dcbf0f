"""Checksums of files in pieces equal those of the whole."""

from __future__ import annotations

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.storage.checksums import CRC32, S3_CHECKSUMS


@given(st.lists(st.binary(max_size=2000), max_size=6))
def test_joined_sum_of_parts_is_that_of_the_whole(parts: list[bytes]) -> None:
    joined = CRC32.join((zlib.crc32(part), len(part)) for part in parts)
    assert joined == zlib.crc32(b"".join(parts))


def test_long_parts_join_too() -> None:
    data = random.Random(1).randbytes(20_000_000)
    parts = [data[at : at + 8 * 1024**2] for at in range(0, len(data), 8 * 1024**2)]
    assert CRC32.join((CRC32.update(part, 0), len(part)) for part in parts) == zlib.crc32(data)


CHECK = {
    "ChecksumCRC32": 0xCBF43926,
    "ChecksumCRC32C": 0xE3069283,
    "ChecksumCRC64NVME": 0xAE8B14860A799888,
}
"""What each gives for the nine digits, by the catalogue of such sums."""


@pytest.mark.parametrize("field", sorted(S3_CHECKSUMS))
def test_every_sum_has_its_catalogued_value_and_joins(field: str) -> None:
    crc = S3_CHECKSUMS[field]
    assert crc.update(b"123456789", 0) == CHECK[field]
    parts = [(crc.update(b"1234", 0), 4), (crc.update(b"56789", 0), 5)]
    assert crc.join(parts) == CHECK[field]
    text = base64.b64encode(CHECK[field].to_bytes(crc.bits // 8, "big")).decode()
    assert crc.decode(text) == CHECK[field]


def test_sum_of_another_length_is_told() -> None:
    with pytest.raises(ValueError, match="CRC32 has 32 bits"):
        CRC32.decode("AAAA")
