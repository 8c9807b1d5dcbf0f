"""Combined checksums of pieces equal those of the whole."""

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.storage.partial_file import CRC32, S3_CHECKSUMS


@given(st.lists(st.binary(max_size=2000), max_size=6))
def test_combined_crc32_equals_that_of_the_whole(parts: list[bytes]) -> None:
    combined = CRC32.combine((zlib.crc32(part), len(part)) for part in parts)
    assert combined == zlib.crc32(b"".join(parts))


def test_combines_long_parts() -> None:
    data = random.Random(1).randbytes(20_000_000)
    parts = [data[at : at + 8 * 1024**2] for at in range(0, len(data), 8 * 1024**2)]
    assert CRC32.combine((CRC32.update(part, 0), len(part)) for part in parts) == zlib.crc32(data)


CHECK = {
    "ChecksumCRC32": 0xCBF43926,
    "ChecksumCRC32C": 0xE3069283,
    "ChecksumCRC64NVME": 0xAE8B14860A799888,
}
"""Checksums of the digits 1 to 9 by the catalogue of parametrised CRC algorithms."""


@pytest.mark.parametrize("field", sorted(S3_CHECKSUMS))
def test_each_checksum_has_its_catalogued_value_and_combines(field: str) -> None:
    crc = S3_CHECKSUMS[field]
    assert crc.update(b"123456789", 0) == CHECK[field]
    parts = [(crc.update(b"1234", 0), 4), (crc.update(b"56789", 0), 5)]
    assert crc.combine(parts) == CHECK[field]
    text = base64.b64encode(CHECK[field].to_bytes(crc.bits // 8, "big")).decode()
    assert crc.decode(text) == CHECK[field]


def test_refuses_a_checksum_of_another_length() -> None:
    with pytest.raises(ValueError, match="CRC32 must have 32 bits"):
        CRC32.decode("AAAA")
