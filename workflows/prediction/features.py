"""Features of a request that hint at its steps: modalities, sizes and hashed words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_WORDS: Final = 32
"""Of one argument: the first ones."""
_MAX_CHARACTERS: Final = 4096
_WORD_CLASSES: Final = 1024
_WORDS: Final = re.compile(r"\w{3,}")


def request_features(arguments: Mapping[str, object]) -> frozenset[str]:
    """Short names, equal for requests that are alike; bounded in number and length."""
    return frozenset(
        f"{name[:32]}:{feature}"
        for name, value in arguments.items()
        for feature in _features(value)
    )


def _features(value: object) -> Iterator[str]:
    yield type(value).__name__
    match value:
        case bool() | None:
            yield f"is-{value}"
        case int() if abs(value) < 1000:
            yield f"is-{value}"
        case str():
            yield f"length-{len(value).bit_length()}"
            words = _WORDS.findall(value[:_MAX_CHARACTERS].lower())[:MAX_WORDS]
            yield from {f"word-{crc32(word.encode()) % _WORD_CLASSES}" for word in words}
        case bytes() | list() | dict():
            yield f"length-{len(value).bit_length()}"
