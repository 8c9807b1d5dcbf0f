"""Models in an archive: one tar (plain, gzip, bzip2) or zip file in place of a model's folder.

KServe's storage initializer unpacks such a file; here its members become the files of the model.
Only regular files are read, by name into files of our own: nothing that an archive says makes a
link, a device or a path outside the model's folder. Numbers and sizes are bounded before they are
believed.
"""

from __future__ import annotations

import bz2
import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from runtime.errors import ModelInvalid, ModelUnsupported
from runtime.storage.listing import MAX_LISTED, MAX_WEIGHT_BYTES, RemoteFile, checked_listing
from runtime.storage.partial_file import PartialFile, split_spans

MAX_RATIO: Final = 100
"""Most bytes of members for each byte of an archive; weights compress to no less than a third."""
ALWAYS_BYTES: Final = 1024**3
"""Members of this size in all are unpacked from an archive of any size."""
_MAX_READ_BYTES: Final = 4 * 1024**2
"""Of one read: longest header of a member, longest directory of a zip file."""
_CHUNK_BYTES: Final = 256 * 1024
_ZIP_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2})
_IS_ENCRYPTED: Final = 1
_BAD_ARCHIVE: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError,
                       NotImplementedError, RuntimeError)  # fmt: skip
"""What the libraries raise for an archive that is not valid."""


class Archive:
    """A downloaded archive. Methods block, and raise ModelInvalid for one that is not sound."""

    def __init__(self, path: Path, file: RemoteFile, uri: str) -> None:
        """`path`: on this disk; `file`: as it was listed."""
        self._path = path
        self._file = file
        self._name = uri if uri.endswith(file.path) else f"{uri.rstrip('/')}/{file.path}"
        self._members: dict[str, int] = {}
        """Number of the last member of a name; names as listed."""

    def list_files(self) -> tuple[RemoteFile, ...]:
        """The members as files of the model, a single folder around them left out."""
        version = f"{self._file.path} {self._file.version}"
        sizes: dict[str, int] = {}
        numbers: dict[str, int] = {}
        with self._reading() as members:
            for number, member in enumerate(self._bounded(members)):
                sizes[member.path], numbers[member.path] = member.size_bytes, number
        listed = [RemoteFile(path, size, version) for path, size in sizes.items()]
        visible = checked_listing(listed, self._name)
        if not visible:
            raise ModelInvalid(f"{self._name} has no files")
        top = _top_folder(visible)
        self._members = {file.path.removeprefix(top): numbers[file.path] for file in visible}
        return tuple(
            RemoteFile(file.path.removeprefix(top), file.size_bytes, version) for file in visible
        )

    def _bounded(self, members: Iterator[_Member]) -> Iterator[_Member]:
        """The members, until there are too many or too large ones; none is read before."""
        most = min(max(ALWAYS_BYTES, MAX_RATIO * self._file.size_bytes), MAX_WEIGHT_BYTES)
        total = 0
        for count, member in enumerate(members):
            total += member.size_bytes
            if count >= MAX_LISTED or total > most:
                raise ModelInvalid(
                    f"{self._name} is not unpacked: it has more than {MAX_LISTED} members, or more"
                    f" than {most} bytes in them (1 GiB, or {MAX_RATIO} times its own size)"
                )
            yield member

    def unpack(self, targets: Sequence[PartialFile]) -> None:
        """Write the members of these files as `list_files` gave them; raises OSError, too."""
        wanted = {self._members[target.file.path]: target for target in targets}
        with self._reading() as members:
            for number, member in enumerate(members):
                if (target := wanted.pop(number, None)) is not None:
                    with member.open() as source:
                        self._write(source, target)
                if not wanted:
                    return

    def _write(self, source: IO[bytes], target: PartialFile) -> None:
        for span in split_spans(target.file.size_bytes):
            at, crc32 = span.start, 0
            while at < span.end:
                chunk = self._read(source, min(_CHUNK_BYTES, span.end - at))
                target.write(memoryview(chunk), at)
                at, crc32 = at + len(chunk), zlib.crc32(chunk, crc32)
            target.record_written(span, crc32)

    def _read(self, source: IO[bytes], size: int) -> bytes:
        with self._sound():
            chunk = source.read(size)
        if not chunk:
            raise ModelInvalid(f"{self._name} is truncated")
        return chunk

    @contextmanager
    def _reading(self) -> Iterator[Iterator[_Member]]:
        with self._path.open("rb") as raw, self._sound():
            is_zip = self._file.path.lower().endswith(".zip")
            read = self._zip_members if is_zip else self._tar_members
            yield read(cast("IO[bytes]", _BoundedReads(raw)))

    @contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            yield
        except ModelInvalid:
            raise
        except _BAD_ARCHIVE as error:
            raise ModelInvalid(f"{self._name} is not a sound archive: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise ModelInvalid(f"{self._name} is not a sound archive: {error}") from error

    def _tar_members(self, raw: IO[bytes]) -> Iterator[_Member]:
        with tarfile.open(fileobj=_decompressed(raw), mode="r:", encoding="utf-8") as archive:
            for info in archive:
                if info.isdir():
                    continue
                self._check_kind(info.name, is_file=info.isreg())
                yield _Member(_plain(info.name), info.size, partial(_tar_member, archive, info))

    def _zip_members(self, raw: IO[bytes]) -> Iterator[_Member]:
        with zipfile.ZipFile(raw) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where no Unix wrote it
                self._check_kind(info.filename, is_file=kind in {0, stat.S_IFREG})
                if info.flag_bits & _IS_ENCRYPTED or info.compress_type not in _ZIP_METHODS:
                    raise ModelUnsupported(
                        f"{self._name} has {info.filename!r} encrypted, or compressed by a method"
                        " other than deflate and bzip2: pack it anew"
                    )
                yield _Member(_plain(info.filename), info.file_size, partial(archive.open, info))

    def _check_kind(self, path: str, *, is_file: bool) -> None:
        if not is_file:
            raise ModelInvalid(
                f"{self._name} has {path!r}, which is a link or a device: only files are unpacked;"
                " pack what it points to (tar --dereference --hard-dereference)"
            )


@dataclass(frozen=True, slots=True)
class _Member:
    path: str
    size_bytes: int
    open: Callable[[], IO[bytes]]


class _BoundedReads:
    """A file without long reads: the libraries believe lengths that the archive states."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_READ_BYTES:
            raise ValueError(f"a header of {size} bytes, of at most {_MAX_READ_BYTES}")
        return self._source.read(_MAX_READ_BYTES if size < 0 else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """The file is its opener's."""


def _decompressed(raw: IO[bytes]) -> IO[bytes]:
    start = raw.read(3)
    raw.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", _BoundedReads(cast("IO[bytes]", gzip.GzipFile(fileobj=raw))))
    if start == b"BZh":
        return cast("IO[bytes]", _BoundedReads(cast("IO[bytes]", bz2.BZ2File(raw))))
    return raw


def _tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    found = archive.extractfile(info)
    if found is None:
        raise tarfile.TarError(f"{info.name} is no file")
    return found


def _plain(path: str) -> str:
    """Without `.` and doubled slashes; what leads elsewhere is refused with the listing."""
    return str(PurePosixPath(path))


def _top_folder(files: Sequence[RemoteFile]) -> str:
    """The one folder that all files are in, with a slash; empty without one, or for a version."""
    tops = {file.path.partition("/")[0] if "/" in file.path else "" for file in files}
    top = tops.pop() if len(tops) == 1 else ""
    return f"{top}/" if top and not top.isdecimal() else ""
