"""Header blocks of any content, and frames in any pieces."""

import contextlib

import pytest
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc.authority_relay import (
    AUTHORITY,
    AUTHORITY_HEADER,
    RequestFrames,
    authority_of,
    header_decoder,
    literal,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def test_an_entry_that_left_the_table_is_none() -> None:
    decoder = header_decoder()
    assert authority_of(decoder, b"\x41\x01a") == b"a"
    assert authority_of(decoder, b"\xbe") == b"a"
    authority_of(decoder, b"\x20")  # the table gets size 0
    with pytest.raises(HPACKError, match="62"):
        authority_of(decoder, b"\xbe")


@given(st.binary(max_size=200))
def test_any_block_is_read_or_refused(block: bytes) -> None:
    decoder = header_decoder()
    with contextlib.suppress(HPACKError):
        authority_of(decoder, block)


@given(st.binary(max_size=255).map(bytes), st.binary(max_size=255))
def test_a_literal_is_read_again(name: bytes, value: bytes) -> None:
    block = literal(name, value)
    decoder = header_decoder()
    assert authority_of(decoder, block) == (value if name == AUTHORITY else b"")
    assert authority_of(decoder, literal(AUTHORITY, value)) == value


def frame(kind: int, flags: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, 1)) + content


BLOCK = b"\x82\x41\x0fwww.example.com"
HEADERS = {
    "one frame": (frame(1, 0x4, BLOCK),),
    "with padding": (frame(1, 0xC, b"\x02" + BLOCK + b"\0\0"),),
    "with priority": (frame(1, 0x24, b"\0\0\0\0\x10" + BLOCK),),
    "with a continuation": (frame(1, 0, BLOCK[:5]), frame(9, 0x4, BLOCK[5:])),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
def test_the_header_is_added_at_the_end_of_a_requests_headers(name: str, step: int) -> None:
    *first, last = HEADERS[name]
    data = frame(0, 1, b"body of a request, which may hold \x01\x04 anything" * 9)
    sent = PREFACE + frame(4, 0, b"") + b"".join(first) + last + data + last[:0]
    frames = RequestFrames()
    found = b"".join(frames.feed(sent[at : at + step]) for at in range(0, len(sent), step))
    open_ended = last[:4] + bytes((last[4] & ~0x4,)) + last[5:]
    added = frame(9, 0x4, literal(AUTHORITY_HEADER, b"www.example.com"))
    assert found == PREFACE + frame(4, 0, b"") + b"".join(first) + open_ended + added + data


def test_headers_without_end_are_refused() -> None:
    frames = RequestFrames()
    frames.feed(PREFACE + frame(1, 0, b""))
    with pytest.raises(HPACKError, match="headers have"):
        frames.feed(frame(9, 0, bytes(16_384)) * 9)


@pytest.mark.parametrize(
    "content", [frame(1, 0xC, b""), frame(1, 0xC, b"\x09ab"), b"\xff\xff\xff\x01\x04\0\0\0\x01"]
)
def test_frames_that_contradict_themselves_are_refused(content: bytes) -> None:
    with pytest.raises(HPACKError):
        RequestFrames().feed(PREFACE + content)
