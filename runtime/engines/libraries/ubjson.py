"""Reads Universal Binary JSON as XGBoost writes it (ubjson.org, draft 12), for checks."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from runtime.errors import ModelInvalid

MAX_DEPTH: Final = 64
_NUMBERS: Final = {
    b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8",
}  # fmt: skip
_CONSTANTS: Final = {b"Z": None, b"T": True, b"F": False}


def read_ubjson(content: bytes) -> Any:
    """The document, typed arrays as numpy's; raises ModelInvalid."""
    try:
        return _Reader(content).value(0)
    except (IndexError, ValueError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ModelInvalid(f"the file is cut short or no UBJSON: {error}") from error


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def value(self, depth: int) -> Any:
        return self._of_kind(self._take(1), depth)

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._content):
            raise ValueError(f"{size} bytes are needed at {self._at} of {len(self._content)}")
        self._at += size
        return self._content[self._at - size : self._at]

    def _peek(self) -> bytes:
        return self._content[self._at : self._at + 1]

    def _of_kind(self, kind: bytes, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        match kind:
            case b"S":
                return self._text()
            case b"C":
                return self._take(1).decode()
            case b"{":
                return self._object(depth + 1)
            case b"[":
                return self._array(depth + 1)
        raise ValueError(f"unknown type {kind!r} at {self._at}")

    def _text(self) -> str:
        return self._take(self._size()).decode()

    def _size(self) -> int:
        size = self._of_kind(self._take(1), MAX_DEPTH)
        if type(size) is not int:
            raise ValueError(f"a size is no whole number at {self._at}")
        return size

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != b"}":
            name = self._text()
            if name in found:  # of which XGBoost takes the first
                raise ValueError(f"{name!r} is there twice in an object")
            found[name] = self.value(depth)
        self._take(1)
        return found

    def _array(self, depth: int) -> Any:
        if self._peek() == b"$":
            self._take(1)
            kind = self._take(1)
            if kind not in _NUMBERS:
                raise ValueError(f"an array of unknown type {kind!r} at {self._at}")
            dtype = np.dtype(_NUMBERS[kind])
            if self._take(1) != b"#":
                raise ValueError(f"an array has no count at {self._at}")
            count = self._size()
            return np.frombuffer(self._take(count * dtype.itemsize), dtype)
        if self._peek() == b"#":
            self._take(1)
            return [self.value(depth) for _ in range(self._size())]
        found = []
        while self._peek() != b"]":
            found.append(self.value(depth))
        self._take(1)
        return found
