"""Checksums of files that arrive in pieces: one per piece, combined into that of the whole file.

The disk cache records zlib's CRC-32. S3 keeps CRC-32, CRC-32C or CRC-64/NVME of whole objects; the
latter two are compared where the package awscrt is installed.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

try:
    from awscrt import checksums as awscrt
except ImportError:
    awscrt = None


Matrix = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Crc:
    """A kind of cyclic redundancy check, reflected, with all bits inverted at both ends."""

    name: str
    bits: int
    polynomial: int
    update: Callable[[bytes | memoryview, int], int]
    """(bytes, checksum of what precedes them) to the checksum of both."""

    def combine(self, parts: Iterable[tuple[int, int]]) -> int:
        """The checksum of a whole, from checksum and length in bytes of each part in order."""
        total = 0
        for part, length in parts:
            total = _apply(_zeros(self.bits, self.polynomial, length), total) ^ part
        return total

    def decode(self, text: str) -> int:
        """A checksum as S3 writes it, base64 of its big-endian bytes; raises ValueError."""
        raw = base64.b64decode(text, validate=True)
        if len(raw) * 8 != self.bits:
            raise ValueError(f"a {self.name} must have {self.bits} bits in base64, was {text!r}")
        return int.from_bytes(raw, "big")


CRC32: Final = Crc("CRC32", 32, 0xEDB88320, zlib.crc32)

S3_CHECKSUMS: Final[Mapping[str, Crc]] = {
    "ChecksumCRC32": CRC32,
    **(
        {
            "ChecksumCRC64NVME": Crc("CRC64NVME", 64, 0x9A6C9329AC4BC9B5, awscrt.crc64nvme),
            "ChecksumCRC32C": Crc("CRC32C", 32, 0x82F63B78, awscrt.crc32c),
        }
        if awscrt
        else {}
    ),
}
"""The checksums that can be computed here, by the name of their field in S3's responses."""


# The method of zlib's crc32_combine: appending a zero bit to a message is a linear map of its
# checksum over GF(2), so appending n zero bytes is the 8n-th power of that map.


@lru_cache(maxsize=64)
def _zeros(bits: int, polynomial: int, length: int) -> Matrix:
    """The map of a checksum when `length` zero bytes are appended."""
    result: Matrix = tuple(1 << bit for bit in range(bits))
    power: Matrix = (polynomial, *(1 << bit for bit in range(bits - 1)))
    exponent = 8 * length
    while exponent:
        if exponent & 1:
            result = _multiply(power, result)
        power = _multiply(power, power)
        exponent >>= 1
    return result


def _multiply(first: Matrix, second: Matrix) -> Matrix:
    return tuple(_apply(first, column) for column in second)


def _apply(matrix: Matrix, vector: int) -> int:
    total, row = 0, 0
    while vector:
        if vector & 1:
            total ^= matrix[row]
        vector >>= 1
        row += 1
    return total
