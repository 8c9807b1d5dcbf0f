"""Models in a plain folder: `file:///path/to/model`."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from runtime.errors import ModelInvalid, StorageFailed
from runtime.metrics import DOWNLOADED_BYTES
from runtime.storage import CHUNK_BYTES, MOST_FILES, RemoteFile, allocate, checked_listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.link import LinkRate


class FileStorage:
    """A model in a folder of this machine."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise StorageFailed(f"storage URI {uri!r} must be file:// and an absolute path")
        self._uri = uri
        self._folder = Path(unquote(parts.path))

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All regular files below the folder."""
        if not self._folder.is_dir():
            raise StorageFailed(f"{self._uri} does not exist or is not a folder")
        try:
            return checked_listing(self._walk(), self._uri)
        except OSError as error:
            raise StorageFailed(f"{self._uri} cannot be read: {error}") from error

    def _walk(self) -> Iterator[RemoteFile]:
        count = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = Path(folder) / name
                status = path.stat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                count += 1
                if count > 10 * MOST_FILES:
                    raise ModelInvalid(f"{self._uri} has more than {10 * MOST_FILES} files")
                yield RemoteFile(
                    path.relative_to(self._folder).as_posix(),
                    status.st_size,
                    str(status.st_mtime_ns),
                )

    def fetch(self, file: RemoteFile, target: Path, link: LinkRate) -> None:
        """Copy one file at the link's rate."""
        written = 0
        try:
            with (self._folder / file.path).open("rb") as source, target.open("wb") as sink:
                allocate(sink.fileno(), file.size_bytes)
                while chunk := source.read(CHUNK_BYTES):
                    link.take(len(chunk))
                    sink.write(chunk)
                    written += len(chunk)
                    DOWNLOADED_BYTES.inc(len(chunk))
                sink.flush()
                os.fsync(sink.fileno())
        except OSError as error:
            raise StorageFailed(f"{self._uri}/{file.path} cannot be copied: {error}") from error
        if written != file.size_bytes:
            raise StorageFailed(
                f"{self._uri}/{file.path} changed while it was copied:"
                f" {written} bytes, {file.size_bytes} were listed"
            )
