"""Trace files as bytes: path patterns, gzip by content, one message per failure to read."""

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
_REMEDY: Final = "fetch or write it again"
_UNSUPPORTED: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"Rar!": "rar",
    b"7z\xbc\xaf": "7z",
}
"""Compression formats by the first bytes of their files."""


def matching_files(path: str) -> list[str]:
    """The file at `path`, or all files that match it as a pattern, in natural order.

    Raises TraceNotFound and UnreadableTrace (a folder).
    """
    if "\0" in path:
        raise UnreadableTrace(f"{path!r} is not a path: it contains a NUL character")
    path = os.path.expanduser(path)
    with translated_errors(path):
        if not has_magic(path) or Path(path).exists():
            return [_require_file(path)]
        found = sorted((_require_file(name) for name in glob(path)), key=_natural_order)
    if not found:
        raise TraceNotFound(f"no file matches {path}; check the pattern and the folder")
    return found


def _require_file(path: str) -> str:
    file = Path(path)
    try:
        if file.is_dir():
            raise UnreadableTrace(
                f"{path} is a folder; name a file in it, or a pattern such as '{file}/*.csv'"
            )
        if not file.exists():
            raise TraceNotFound(f"there is no file {path}; check the path")
        if not file.is_file():
            raise UnreadableTrace(f"{path} is a pipe or device; a trace is read more than once")
    except (OSError, ValueError) as error:
        raise UnreadableTrace(f"{path} cannot be opened: {error}") from error
    return path


def _natural_order(path: str) -> list[tuple[int, str]]:
    """A sort key by which day 10 follows day 9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path)]


@contextlib.contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Raise UnreadableTrace for operating system and encoding errors about `path`."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UnreadableTrace(f"{path} is neither UTF-8 text nor Parquet ({error})") from error
    except OSError as error:
        raise UnreadableTrace(f"{path} cannot be read: {error}") from error


@contextlib.contextmanager
def open_uncompressed(path: str) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The content of the file, gzip unpacked. Raises UnreadableTrace, also while it is read."""
    with translated_errors(path), contextlib.ExitStack() as stack:
        raw = stack.enter_context(Path(path).open("rb"))
        head = raw.read(8)
        raw.seek(0)
        if not head:
            raise UnreadableTrace(f"{path} is empty; {_REMEDY}")
        for magic, name in _UNSUPPORTED.items():
            if head.startswith(magic):
                raise UnreadableTrace(f"{path} is compressed with {name}; unpack it, or use gzip")
        yield stack.enter_context(_unpacked(path, raw)) if head.startswith(_GZIP) else raw


@contextlib.contextmanager
def _unpacked(path: str, raw: BufferedReader) -> Iterator[gzip.GzipFile]:
    """The content of gzip data. Raises UnreadableTrace with the last row before the damage."""
    try:
        with gzip.open(raw) as content:
            yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        is_cut = isinstance(error, EOFError)
        problem = "incomplete gzip data" if is_cut else f"damaged gzip data ({error})"
        rows = _count_whole_rows(path)
        place = f"after row {rows}" if rows else "before row 1"
        raise UnreadableTrace(f"{path}, {place}: {problem}; {_REMEDY}") from error


def _count_whole_rows(path: str) -> int:
    """Rows before the damage, numbered as in `tables`.

    Reads the file again in small steps: a step that meets damage returns no bytes at all.
    """
    rows, line = 0, b""
    with contextlib.suppress(EOFError, OSError, zlib.error), gzip.open(path) as content:
        while piece := content.read1(_STEP_BYTES):
            *whole, line = (line + piece).split(b"\n")
            rows += sum(bool(each.strip()) for each in whole)
    return rows
