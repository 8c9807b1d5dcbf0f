"""Messages over real sockets, however the stream is cut, and what is no message."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.frames import LENGTHS, BadFrame, frame, read_frame, received

if TYPE_CHECKING:
    from common.frames import Message

MESSAGES = st.lists(st.tuples(st.dictionaries(st.text(), st.integers(0, 9)), st.binary()))


def read_all(*parts: bytes, max_bytes: int = 1 << 20) -> list[Message]:
    async def read() -> list[Message]:
        reader, found = asyncio.StreamReader(), []
        for part in parts:
            reader.feed_data(part)
        reader.feed_eof()
        while (message := await read_frame(reader, max_bytes=max_bytes)) is not None:
            found.append(message)
        return found

    return asyncio.run(read())


@given(MESSAGES, st.integers(1, 40))
def test_messages_arrive_whole_however_the_stream_is_cut(messages: list[Any], size: int) -> None:
    stream = b"".join(frame(*each) for each in messages)
    parts = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
    assert read_all(*parts) == messages


def test_a_blocking_reader_takes_no_byte_more_than_its_message() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame({"a": 1}, b"body") + b"rest")
        assert next(received(theirs)) == ({"a": 1}, b"body")
        assert theirs.recv(10) == b"rest"
        ours.sendall(frame({"b": 2}) + LENGTHS.pack(2, 0))
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(BadFrame, match="without JSON"):
            list(received(theirs))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(LENGTHS.pack(1 << 20, 1), "1048577 bytes, 1048576 are allowed", id="long"),
        pytest.param(LENGTHS.pack(1, 0) + b"{", "without JSON", id="no-json"),
        pytest.param(LENGTHS.pack(2, 0) + b"[]", "is an object, not list", id="no-object"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadFrame, match=message):
        read_all(data)


def test_a_head_that_is_too_large_or_no_json_is_not_sent() -> None:
    head = {"text": "x" * 100}
    size = len(orjson.dumps(head))
    assert read_all(frame(head, max_bytes=size)) == [(head, b"")]
    with pytest.raises(BadFrame, match=f"has {size} bytes as JSON, {size - 1} are allowed"):
        frame(head, max_bytes=size - 1)
    with pytest.raises(BadFrame, match="not JSON serializable"):
        frame({"value": object()})
