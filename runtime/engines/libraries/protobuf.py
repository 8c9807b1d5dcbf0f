"""Reads protobuf messages field by field, without a schema and without copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIXED64: Final = 1
_MAX_VARINT_BYTES: Final = 10


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: an int, or the bytes of a string or message.

    Raises ModelInvalid if the message is cut short or no protobuf.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        match kind:
            case 0:
                value, at = _varint(message, at)
                yield number, value
                continue
            case 2:
                size, at = _varint(message, at)
            case 1 | 5:
                size = 8 if kind == _FIXED64 else 4
            case _:
                raise ModelInvalid(f"the file is no protobuf: field {number} has type {kind}")
        if at + size > end:
            raise ModelInvalid(f"the file is cut short: field {number} needs {size} bytes")
        yield number, message[at : at + size]
        at += size


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
