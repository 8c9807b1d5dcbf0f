"""Compressed bodies: what clients send, and what would fill the memory."""

import contextlib
import gzip
import random
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.content_coding import CODINGS, UnpackedTooLarge, coding_of, unpack

TEXT = b'{"instances": [1, 2, 3]}'


def raw_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        pytest.param("gzip", gzip.compress(TEXT), id="gzip"),
        pytest.param("x-gzip", gzip.compress(TEXT), id="x-gzip"),
        pytest.param("gzip", gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:]), id="two-members"),
        pytest.param("deflate", zlib.compress(TEXT), id="deflate"),
        pytest.param("deflate", raw_deflate(TEXT), id="deflate-without-zlibs-head"),
    ],
)
def test_unpacks_what_clients_send(coding: str, packed: bytes) -> None:
    assert unpack(packed, coding, 1000) == TEXT


@pytest.mark.parametrize(
    "packed", [gzip.compress(bytes(1 << 20)), gzip.compress(b"x") * 101], ids=["zeros", "members"]
)
def test_a_body_over_the_limit_is_not_unpacked_further(packed: bytes) -> None:
    with pytest.raises(UnpackedTooLarge, match="more than 100 bytes"):
        unpack(packed, "gzip", 100)
    assert len(unpack(packed, "gzip", 100, is_prefix=True)) == 101


@pytest.mark.parametrize(
    "packed",
    [TEXT, gzip.compress(TEXT)[:-9], gzip.compress(TEXT) + b"more"],
    ids=["not-packed", "cut", "more-behind"],
)
def test_other_bytes_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="is not gzip"):
        unpack(packed, "gzip", 1000)


def test_the_beginning_of_a_body_is_unpacked() -> None:
    packed = gzip.compress(TEXT * 100, compresslevel=0)
    assert unpack(packed, "gzip", 10_000) == TEXT * 100
    found = unpack(packed[:500], "gzip", 10_000, is_prefix=True)
    assert (TEXT * 100).startswith(found)
    assert len(found) > 100


@given(st.binary(max_size=300), st.sampled_from(sorted(CODINGS)))
def test_any_bytes_are_unpacked_or_refused(content: bytes, coding: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(unpack(content, coding, 1000)) <= 1000


@pytest.mark.parametrize(
    ("header", "coding"), [(None, ""), ("", ""), ("identity", ""), ("GZIP", "gzip"), (" br ", "br")]
)
def test_reads_the_header(header: str | None, coding: str) -> None:
    assert coding_of(header) == coding


def test_members_without_content_cost_little() -> None:
    began_s = time.process_time()
    with pytest.raises(UnpackedTooLarge, match="10000 parts"):
        unpack(gzip.compress(b"") * 200_000, "gzip", 1 << 26)
    assert time.process_time() - began_s < 5


def test_content_of_many_pieces_and_members() -> None:
    content = random.Random(1).randbytes(100_000)
    packed = gzip.compress(content) + gzip.compress(b"") + gzip.compress(content)
    assert unpack(packed, "gzip", 200_000) == content * 2
    assert unpack(packed, "gzip", 150_000, is_prefix=True)[:150_000] == (content * 2)[:150_000]
    with pytest.raises(ValueError, match="ends early"):
        unpack(packed[:-50_000], "gzip", 200_000)
