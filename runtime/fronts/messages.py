"""What front and device process tell each other: a kind, fields of JSON, and tensors.

A message's bytes are the length of its JSON head in four bytes, the head, and the raw tensors, each
at a multiple of eight bytes. Both processes run this code, so that a wrong message is a fault.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from runtime.wire.raw_tensors import from_raw, raw_view, to_raw
from runtime.wire.tensors import BYTES, Tensor, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LENGTH: Final = struct.Struct("<I")
_ALIGNMENT: Final = 8


class Kind(StrEnum):
    # From a front
    READY = "ready"
    """It takes connections."""
    LEARN = "learn"
    """Asks for the small files of a model."""
    LEARNT = "learnt"
    """It does not read them any more."""
    INFER = "infer"
    CANCEL = "cancel"
    """The request's client has left."""
    END = "end"
    """The request's response is encoded."""
    RESPONSES = "responses"
    """Numbers of responses, for the metrics."""

    # From the device process
    START = "start"
    """What a front needs to know; its first message."""
    LESSON = "lesson"
    OUTPUTS = "outputs"
    REFUSED = "refused"
    STALE = "stale"
    """Another generation serves now: nothing was executed."""
    CLOSE = "close"
    """Complete the open requests, and end."""

    # Both ways
    CONNECTION = "connection"
    """With a descriptor: of a client, or of a front that passes a request on."""


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    fields: Mapping[str, Any]
    tensors: tuple[Tensor, ...] = ()
    descriptors: tuple[int, ...] = ()
    """Owned by who gets the message."""


def encode(
    kind: Kind, fields: Mapping[str, Any], tensors: Sequence[Tensor] = ()
) -> list[bytes | memoryview]:
    """The parts of a message."""
    specs, parts = [], []
    for tensor in tensors:
        part = to_raw(tensor) if tensor.datatype == BYTES else raw_view(tensor)
        specs.append((tensor.name, tensor.datatype, tensor.shape, len(part)))
        parts += [part, bytes(-len(part) % _ALIGNMENT)]
    head = orjson.dumps((kind, fields, specs))
    head += b" " * (-(len(head) + _LENGTH.size) % _ALIGNMENT)
    return [_LENGTH.pack(len(head)), head, *parts]


def decode(content: bytes | memoryview, descriptors: tuple[int, ...] = ()) -> Message:
    """The tensors of numbers are views of `content`."""
    view = memoryview(content)
    (length,) = _LENGTH.unpack_from(view)
    position = _LENGTH.size + length
    kind, fields, specs = orjson.loads(view[_LENGTH.size : position])
    tensors = []
    for name, datatype, shape, size in specs:
        spec = TensorSpec(name, datatype, tuple(shape), name)
        tensors.append(from_raw(view[position : position + size], spec))
        position += size + -size % _ALIGNMENT
    return Message(Kind(kind), fields, tuple(tensors), descriptors)
