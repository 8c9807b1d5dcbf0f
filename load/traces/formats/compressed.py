"""A trace file as bytes: gzip is told by content, and each failure to read has one message."""

from __future__ import annotations

import contextlib
import gzip
import os.path
import re
import zlib
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Final

from load.errors import TraceNotFound, UnreadableTrace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

_GZIP: Final = b"\x1f\x8b"
_STEP_BYTES: Final = 512
_AGAIN: Final = "fetch or write it again"
_OTHER: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"Rar!": "rar",
    b"7z\xbc\xaf": "7z",
}


def files(path: str) -> list[str]:
    """The file at `path`, or those that match it as a pattern, by name and number.

    Raises TraceNotFound and UnreadableTrace (a folder).
    """
    if "\0" in path:
        raise UnreadableTrace(f"{path!r} is no path: it has a zero character")
    path = os.path.expanduser(path)
    with reading(path):
        if not has_magic(path) or Path(path).exists():
            return [_file(path)]
        found = sorted((_file(name) for name in glob(path)), key=_by_number)
    if not found:
        raise TraceNotFound(f"no file matches {path}; check the pattern and the folder")
    return found


def _file(path: str) -> str:
    place = Path(path)
    try:
        if place.is_dir():
            raise UnreadableTrace(
                f"{path} is a folder; name a file in it, or a pattern such as '{place}/*.csv'"
            )
        if not place.exists():
            raise TraceNotFound(f"there is no file {path}; check the path")
        if not place.is_file():
            raise UnreadableTrace(f"{path} is a pipe or device; a trace is read more than once")
    except (OSError, ValueError) as error:
        raise UnreadableTrace(f"{path} cannot be opened: {error}") from error
    return path


def _by_number(path: str) -> list[tuple[int, str]]:
    """So that day 10 comes after day 9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path)]


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what a reader raises about the bytes of `path` into UnreadableTrace."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UnreadableTrace(f"{path} is not UTF-8 text, nor Parquet ({error})") from error
    except OSError as error:
        raise UnreadableTrace(f"{path} cannot be read: {error}") from error


@contextlib.contextmanager
def opened(path: str) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The content of the file, uncompressed."""
    with reading(path), contextlib.ExitStack() as stack:
        raw = stack.enter_context(Path(path).open("rb"))
        head = raw.read(8)
        raw.seek(0)
        if not head:
            raise UnreadableTrace(f"{path} is empty; {_AGAIN}")
        for magic, name in _OTHER.items():
            if head.startswith(magic):
                raise UnreadableTrace(f"{path} is compressed with {name}; unpack it, or use gzip")
        yield stack.enter_context(_unpacked(path, raw)) if head.startswith(_GZIP) else raw


@contextlib.contextmanager
def _unpacked(path: str, raw: BufferedReader) -> Iterator[gzip.GzipFile]:
    """The content of gzip data. Raises UnreadableTrace with the last row before they are bad."""
    try:
        with gzip.open(raw) as content:
            yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        is_cut = isinstance(error, EOFError)
        problem = (
            "ends in the middle of its gzip data" if is_cut else f"damaged gzip data ({error})"
        )
        rows = _whole_rows(path)
        place = f"after row {rows}" if rows else "before row 1"
        raise UnreadableTrace(f"{path}, {place}: {problem}; {_AGAIN}") from error


def _whole_rows(path: str) -> int:
    """How many rows bad gzip data hold before they are bad, counted as readers of tables do.

    The file is read once more, in small steps: a step that meets damage gives nothing at all.
    """
    rows, line = 0, b""
    with contextlib.suppress(EOFError, OSError, zlib.error), gzip.open(path) as content:
        while piece := content.read1(_STEP_BYTES):
            *whole, line = (line + piece).split(b"\n")
            rows += sum(bool(each.strip()) for each in whole)
    return rows
