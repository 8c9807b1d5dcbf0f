"""Messages between the gateway and the looking process."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sneakpeek.frames import (
    FrameReader,
    Kind,
    Load,
    Loaded,
    Look,
    Seen,
    decode_load,
    decode_loaded,
    decode_look,
    decode_seen,
    encode,
    encode_look,
)
from registry.domain.application import InputTensor

LOAD = Load("team/x", "file:///x", 5, ("a", "b"), (InputTensor("f", "FP32", (-1, 4)),), "label")
SEEN = Seen(7, ((1.0, 4.0), (0.0, 5.0)), True, "id", True)
LOADED = Loaded("team/x", "file:///x", 0.5, "")


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 10**6))
def test_messages_arrive_whole_however_the_stream_is_cut(
    body: bytes, number: int, seed: int
) -> None:
    look = Look(number, 1.25, "team/x", 3, body)
    stream = encode(LOAD) + b"".join(encode_look(look, [body[:5], body[5:]]))
    stream += encode(SEEN) + encode(LOADED)
    rng, reader, found = random.Random(seed), FrameReader(), []
    while stream:
        size = rng.randint(1, 40)
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert [kind for kind, _ in found] == [Kind.LOAD, Kind.LOOK, Kind.SEEN, Kind.LOADED]
    decoded = [
        decode(content)
        for decode, (_, content) in zip(
            (decode_load, decode_look, decode_seen, decode_loaded), found, strict=True
        )
    ]
    assert decoded == [LOAD, look, SEEN, LOADED]


def test_what_is_no_message_ends_the_connection() -> None:
    with pytest.raises(ValueError, match="a message of"):
        FrameReader().feed(b"\xff\xff\xff\xff\x01")
