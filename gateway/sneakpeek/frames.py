"""Messages between the gateway and its own processes: length, kind, content.

Times are of the system's monotonic clock, which both processes share.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import orjson

from registry.domain.application import InputTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEAD: Final = struct.Struct("<IB")
_LOOK: Final = struct.Struct("<QdII")
MAX_FRAME_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 18


class Kind(IntEnum):
    LOAD = 1
    """To the process: an application's trained files are to be read."""
    LOOK = 2
    """To the process: a request's body."""
    LOADED = 3
    SEEN = 4
    PLAN = 5
    """To the planning process: a window."""
    PLANNED = 6


@dataclass(frozen=True, slots=True)
class Load:
    """The application whose trained files are wanted; `uri` None: no longer."""

    application: str
    uri: str | None
    k: int | None = None
    classes: tuple[str, ...] = ()
    inputs: tuple[InputTensor, ...] = ()
    output: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    application: str
    uri: str
    accuracy: float = 0.0
    """Profiled, of the look itself."""
    problem: str = ""
    """Why the files cannot be used; empty: they are in use."""


@dataclass(frozen=True, slots=True)
class Look:
    number: int
    until_s: float
    """Nobody waits for the evidence after it."""
    application: str
    json_bytes: int
    """Length of the JSON part of a V2 body with binary tensors; 0: all of it is JSON."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """What the look at a request found."""

    number: int
    rows: tuple[tuple[float, ...], ...] = ()
    """Evidence by row and class; empty: none."""
    is_v2: bool = False
    request_id: str | None = None
    """`id` of a V2 request."""
    is_answerable: bool = False
    """A short circuit may answer: the request asks for no binary tensors or other outputs."""
    problem: str = ""
    """Why no variant of the application can answer the request; empty: none is known."""


@dataclass(slots=True)
class FrameReader:
    """Cuts a stream of bytes into messages."""

    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The messages that are complete. Raises ValueError for what is none."""
        self._buffer += data
        found = []
        while len(self._buffer) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            found.append((Kind(kind), bytes(self._buffer[_HEAD.size : end])))
            del self._buffer[:end]
        return found


def frame(kind: Kind, content: bytes) -> bytes:
    return _HEAD.pack(len(content), kind) + content


def encode(message: Load | Loaded | Seen) -> bytes:
    kind = {Load: Kind.LOAD, Loaded: Kind.LOADED, Seen: Kind.SEEN}[type(message)]
    return frame(kind, orjson.dumps(message))


def encode_look(look: Look, body: Sequence[bytes]) -> list[bytes]:
    """The parts of the message; `body` in place of the look's, which is not copied."""
    name = look.application.encode()
    fixed = _LOOK.pack(look.number, look.until_s, look.json_bytes, len(name))
    length = len(fixed) + len(name) + sum(map(len, body))
    return [_HEAD.pack(length, Kind.LOOK) + fixed + name, *body]


def decode_look(content: bytes) -> Look:
    number, until_s, json_bytes, name_bytes = _LOOK.unpack_from(content)
    begin = _LOOK.size + name_bytes
    return Look(number, until_s, content[_LOOK.size : begin].decode(), json_bytes, content[begin:])


def decode_load(content: bytes) -> Load:
    stored = orjson.loads(content)
    inputs = tuple(
        InputTensor(each["name"], each["datatype"], tuple(each["shape"]))
        for each in stored["inputs"]
    )
    return Load(**stored | {"classes": tuple(stored["classes"]), "inputs": inputs})


def decode_loaded(content: bytes) -> Loaded:
    return Loaded(**orjson.loads(content))


def decode_seen(content: bytes) -> Seen:
    stored = orjson.loads(content)
    return Seen(**stored | {"rows": tuple(tuple(row) for row in stored["rows"])})


@contextmanager
def gateway_socket() -> Iterator[socket.socket]:
    """The socket whose descriptor is the first argument; the body ends when the gateway does."""
    with (
        socket.socket(fileno=int(sys.argv[1])) as connection,
        suppress(ConnectionError, KeyboardInterrupt),
    ):
        yield connection


def received(connection: socket.socket) -> Iterator[tuple[Kind, bytes]]:
    """Messages until the gateway closes its end. Raises ValueError for what is none."""
    reader = FrameReader()
    while data := connection.recv(_READ_BYTES):
        yield from reader.feed(data)
