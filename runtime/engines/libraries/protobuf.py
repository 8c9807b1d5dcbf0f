"""Reads protobuf messages field by field, without a schema and without copies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from runtime.errors import ModelInvalid

_FIXED64, _SIZED, _FIXED32 = 1, 2, 5
_SHORT_STRING: Final = 32
"""Bytes of names of nodes and classes are fewer."""
_MAX_VARINT_BYTES: Final = 10


def runs_of(*, floats: int, integers: int, strings: int) -> re.Pattern[bytes]:
    """Matches entries of three repeated fields, the strings short ones, for `fields` to pass over.

    The fields have numbers below 16, which take one byte with their type.
    """
    fixed = _tag(floats, _FIXED32) + b".{4}"
    number = _tag(integers, 0) + b"[\\x80-\\xff]{0,%d}+[\\x00-\\x7f]" % (_MAX_VARINT_BYTES - 1)
    sized = (re.escape(bytes([size])) + b".{%d}" % size for size in range(_SHORT_STRING))
    text = _tag(strings, _SIZED) + b"(?:%b)" % b"|".join(sized)
    return re.compile(b"(?:%b)++|(?:%b)++|(?:%b)++" % (fixed, number, text), re.DOTALL)


def _tag(number: int, kind: int) -> bytes:
    return re.escape(bytes([number << 3 | kind]))


def fields(
    message: memoryview, passed_over: re.Pattern[bytes] | None = None
) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: an int, or the bytes of a string or message.

    `passed_over`: what `runs_of` gave: millions of entries take a few hundred milliseconds. Raises
    ModelInvalid if the message is cut short or no protobuf.
    """
    for number, value, _, _ in entries(message, passed_over):
        yield number, value


def entries(
    message: memoryview, passed_over: re.Pattern[bytes] | None = None
) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """As `fields`, each with the place of its first byte in the message and of the one behind."""
    at, end = 0, len(message)
    while at < end:
        begin = at
        if passed_over is not None and (run := passed_over.match(message, at)) is not None:
            at = run.end()
            continue
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        match kind:
            case 0:
                value, at = _varint(message, at)
                yield number, value, begin, at
                continue
            case 2:
                size, at = _varint(message, at)
            case 1 | 5:
                size = 8 if kind == _FIXED64 else 4
            case _:
                raise ModelInvalid(f"the file is no protobuf: field {number} has type {kind}")
        if at + size > end:
            raise ModelInvalid(f"the file is cut short: field {number} needs {size} bytes")
        yield number, message[at : at + size], begin, at + size
        at += size


def encoded(number: int, content: bytes) -> bytes:
    """A string or message as the field of a message."""
    return _encoded_varint(number << 3 | _SIZED) + _encoded_varint(len(content)) + content


def _encoded_varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: int | memoryview) -> str:
    """A string field; raises ModelInvalid."""
    if isinstance(value, int):
        raise ModelInvalid("the file is no model: a number where a text should be")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"the file holds a text that is not UTF-8: {error}") from error


def message(value: int | memoryview) -> memoryview:
    """A message field; raises ModelInvalid."""
    if isinstance(value, int):
        raise ModelInvalid("the file is no model: a number where a message should be")
    return value


def varints(value: int | memoryview) -> list[int]:
    """The numbers of a repeated field's entry: one, or many that are packed; raises ModelInvalid.

    Negative numbers are those of 64 bits without a sign.
    """
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(data):
            raise ModelInvalid("the file is cut short within a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ModelInvalid("the file is no protobuf: a number has more than 10 bytes")
