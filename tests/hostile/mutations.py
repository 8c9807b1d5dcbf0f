"""Documents and bytes that are nearly valid: a valid one with a few places replaced.

Documents become JSON with `json_bytes`; a value of class `Raw` is written as it is, valid or not.
Paths and URIs get escapes that they need not have.
"""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy


@dataclass(frozen=True)
class Raw:
    """Bytes in place of a JSON value."""

    text: bytes


ODD_TEXTS: Final = (
    "", " ", "x", "é", "\0", "\n", "\ud7ff", "\U0001f4a5", "..", "/", "~", "%00", "a/b", "a~b",
    "-1", "1e999", "NaN", "{{7*7}}", "<|endoftext|>", "x" * 300, "y" * 70_000, "b " * 5_000,
    "../../etc/passwd", "file:///etc/passwd", "http://169.254.169.254/", "\u202e", "[INST]",
)  # fmt: skip
ODD_NUMBERS: Final = (
    0, -1, 1, 2, 7, 63, 64, 255, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 2**64 - 1,
    0.5, -0.0, 1e-320, 1e308, 3.5e38,
)  # fmt: skip
ODD_RAW: Final = tuple(
    Raw(text)
    for text in (
        b"",
        b"NaN",
        b"Infinity",
        b"-",
        b"1e999",
        b"9" * 400,
        b"0123",
        b"1.",
        b"tru",
        b"'x'",
        b"[",
        b"]",
        b"}",
        b'{"a"',
        b'"',
        b'"\\',
        b'"\\ud800"',
        b'"\\u0000"',
        b'"\xff\xfe"',
        b"\xef\xbb\xbf1",
        b"[" * 2_000,
        b"[" * 100_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        b"[]," * 3_000,
        b"[" + b'"",' * 20_000 + b'""]',
        b"[" + b"0," * 50_000 + b"0]",
        b"/**/1",
        b"1,",
        b"[" * 900 + b"]" * 900,
        b"{" + b'"k":1,' * 5_000 + b'"k":1}',
        b"{" + b",".join(b'"k%d":0' % n for n in range(20_000)) + b"}",
    )
)
ODD_VALUES: SearchStrategy[Any] = (
    st.sampled_from([None, True, False])
    | st.sampled_from(ODD_NUMBERS)
    | st.sampled_from(ODD_TEXTS)
    | st.sampled_from([[], {}, [[]], [None], [{}], {"": {}}, [[1], [1, 2]], [1, "x"], {"b64": "!"}])
    | st.sampled_from(ODD_RAW)
    | st.text(max_size=12)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
)


def json_bytes(value: Any) -> bytes:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        pairs = (json_bytes(key) + b":" + json_bytes(each) for key, each in value.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(json_bytes, value)) + b"]"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value).encode()
    try:
        return orjson.dumps(value)
    except (orjson.JSONEncodeError, TypeError):  # a lone surrogate
        return orjson.dumps(repr(value))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key in value:
            found += _paths(value[key], (*path, key))
    elif isinstance(value, list):
        for at in range(min(len(value), 8)):
            found += _paths(value[at], (*path, at))
    return found


def _replaced(document: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(document)
    document[path[0]] = _replaced(document[path[0]], path[1:], change)
    return document


def _mutate_one(draw: DrawFn, document: Any, keys: Sequence[str]) -> Any:
    path = draw(st.sampled_from(_paths(document)))
    kind = draw(st.sampled_from(["replace", "drop", "add", "wrap", "repeat", "nest"]))

    def change(value: Any) -> Any:
        if kind == "drop" and isinstance(value, (dict, list)) and value:
            at = draw(st.sampled_from(list(value) if isinstance(value, dict) else [0, -1]))
            del value[at]
            return value
        if kind == "add" and isinstance(value, dict):
            key = draw(st.sampled_from([*keys, "", "é", "__proto__", "k" * 300]))
            value[key] = copy.deepcopy(draw(ODD_VALUES))
            return value
        if kind == "add" and isinstance(value, list):
            return [*value, copy.deepcopy(draw(ODD_VALUES))]
        if kind == "wrap":
            return [value] if draw(st.booleans()) else {"x": value}
        if kind == "repeat" and isinstance(value, list):
            return value * draw(st.sampled_from([2, 17, 300]))
        if kind == "nest":
            for _ in range(draw(st.sampled_from([1, 20, 90]))):
                value = [value]
            return value
        return copy.deepcopy(draw(ODD_VALUES))

    return _replaced(document, path, change)


@st.composite
def mutated(
    draw: DrawFn, documents: SearchStrategy[Any], keys: Sequence[str], most: int = 3
) -> Any:
    """One of the documents with up to `most` mutations; `keys` are tried as names of fields."""
    document = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(0, most))):
        document = _mutate_one(draw, document, keys)
    return document


ODD_BYTES: Final = (
    b"", b"\0", b"\xff", b"\r\n", b"\n", b" ", b"\t", b":", b",", b"\x80\x80\x80\x80\x10",
    b"\r\n\r\n",
    b"0\r\n\r\n", b"%", b"\0" * 64, b"\xff" * 8, b"A" * 1_000, b"\x7f\xff\xff\xff", b"\0\0\0\0",
)  # fmt: skip


@st.composite
def damaged(draw: DrawFn, contents: SearchStrategy[bytes], most: int = 4) -> bytes:
    """One of the contents with up to `most` places overwritten, inserted, removed or doubled."""
    content = draw(contents)
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["overwrite", "insert", "cut", "remove", "double"]))
        odd = draw(st.sampled_from(ODD_BYTES) | st.binary(min_size=1, max_size=4))
        length = draw(st.sampled_from([1, 2, 4, 16, 200]))
        match kind:
            case "overwrite":
                content = content[:at] + odd + content[at + len(odd) :]
            case "insert":
                content = content[:at] + odd + content[at:]
            case "cut":
                content = content[:at]
            case "remove":
                content = content[:at] + content[at + length :]
            case _:
                content = content[: at + length] + content[at:]
    return content


def escape_one(draws: random.Random, text: str, *, first: int) -> str:
    """A path or URI with one of its characters, from the index `first` on, as an escape."""
    at = draws.randrange(first, len(text))
    return f"{text[:at]}%{ord(text[at]):02x}{text[at + 1 :]}"
