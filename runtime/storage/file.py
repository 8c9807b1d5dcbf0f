"""Models in a folder: `file:///path/to/model`, `pvc://claim/path`, or what a library has fetched.

KServe mounts the claim of a `pvc://` URI into the pod that reads it; here all claims that pods may
read are mounted below one folder, each under its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial as bind
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from common.parent_death import dies_with_this_thread
from registry.domain.model import ModelSpec
from runtime.errors import DiskFull, ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.access import StorageAccess
from runtime.storage.library_fetch import HUB_SCHEME
from runtime.storage.listing import MAX_LISTED, MAX_WEIGHT_BYTES, RemoteFile, checked_listing
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import PartialFile, file_bytes, folder_bytes
from runtime.storage.ranged_download import BandwidthUse, download_ranges

_LOCAL: Final = "internal.serving.kserve.io/localmodel"
_CLAIM: Final = re.compile("[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
MAX_FILE_READERS: Final = 2
"""Of a file on this machine, whose limit is the CPU or the disk."""


class FolderStorage:
    """A model in a folder or file of this machine; reads nothing outside `bounds`, if given."""

    def __init__(self, uri: str, path: Path, *, bounds: Path | None = None) -> None:
        """`path`: of the folder, or of a file, which is a folder's only one then."""
        if "\0" in str(path):
            raise StorageFailed(f"storage URI {uri!r} must not contain a zero byte")
        self._uri = uri
        self._path = path
        self._bounds = bounds.resolve() if bounds is not None else None

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All regular files of the folder, or the one file; raises StorageFailed, ModelInvalid."""
        self._check_bounds(self._path)
        try:
            if os.path.isfile(self._path):
                only = _remote_file(self._path.name, self._path.stat())
                return checked_listing([only], self._uri)
            if self._path.is_dir():
                return checked_listing(self._walk(), self._uri)
        except OSError as error:
            raise StorageFailed(f"{self._uri} cannot be read: {error}") from error
        raise StorageFailed(f"{self._uri} does not exist on the pod's node")

    def _check_bounds(self, path: Path) -> None:
        if self._bounds is not None and not path.resolve().is_relative_to(self._bounds):
            raise ModelInvalid(f"{self._uri} leads out of its volume: {path.name!r}")

    def _walk(self) -> Iterator[RemoteFile]:
        count = 0
        for folder, _, names in os.walk(self._path):
            for name in names:
                path = Path(folder) / name
                self._check_bounds(path)
                status = path.stat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                count += 1
                if count > MAX_LISTED:
                    raise ModelInvalid(
                        f"{self._uri} has more than {MAX_LISTED} files: name a model's own folder"
                    )
                yield _remote_file(path.relative_to(self._path).as_posix(), status)

    def read_start(self, file: RemoteFile, size: int) -> bytes:
        path, name = self._checked(file)
        try:
            with path.open("rb") as source:
                return source.read(size)
        except OSError as error:
            raise StorageFailed(f"{name} cannot be read: {error}") from error

    def _checked(self, file: RemoteFile) -> tuple[Path, str]:
        """Path of a listed file and its name for errors; raises LoadFailed if it was replaced."""
        folder = self._path.parent if os.path.isfile(self._path) else self._path
        path, name = folder / file.path, f"{self._uri}/{file.path}"
        self._check_bounds(path)
        _check_unchanged(path, file, name)
        return path, name

    def fetch(self, partial: PartialFile, bandwidth: BandwidthUse, readers: int) -> None:
        file, readers = partial.file, min(readers, MAX_FILE_READERS)
        path, name = self._checked(file)
        open_reader = bind(_open_reader, path, name)
        download_ranges(open_reader, partial, bandwidth, name=name, readers=readers)
        _check_unchanged(path, file, name)


class FileStorage(FolderStorage):
    def __init__(self, uri: str, bounds: Path | None = None) -> None:
        """`bounds`: nothing outside this folder is read, also by links; None: any."""
        parts = urlsplit(uri)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise StorageFailed(f"storage URI {uri!r} must be file:// and an absolute path")
        super().__init__(uri, _named(Path("/"), parts.path), bounds=bounds)


class ClaimStorage(FolderStorage):
    """A model at a `pvc://` URI, with its claim mounted at `mounts/claim`."""

    def __init__(self, uri: str, mounts: Path, bounds: Path | None = None) -> None:
        """`bounds`: nothing outside this folder is read, also by links; None: the claim's."""
        parts = urlsplit(uri)
        claim, path = parts.netloc, parts.path.strip("/")
        if not claim or claim in {".", ".."}:
            raise StorageFailed(f"storage URI {uri!r} must be pvc://claim/path")
        mount = mounts / claim
        if not mount.is_dir():
            raise StorageFailed(
                f"{uri}: the claim {claim!r} is not mounted at {mount}; mount it into the pods"
            )
        super().__init__(uri, _named(mount, path), bounds=bounds or mount)


def mounted_model(spec: ModelSpec, mounts: Path) -> FolderStorage | None:
    """What a volume of the pod has of a model, in place of a download; None: no volume has it.

    An image is mounted at `oci/HOST/REPOSITORY/TAG`, whole or its folder `models`; the claim of a
    LocalModelCache, which KServe's webhook names, has the model's files where KServe's jobs put
    them. Source: KServe 0.20, `pkg/utils/storage.go` and `storage_initializer_injector.go`.
    """
    uri, notes = spec.storage_uri, dict(spec.annotations)
    claim, source = notes.get(f"{_LOCAL}-pvc-name", ""), notes.get(f"{_LOCAL}-sourceuri", "")
    if uri.startswith("oci://"):
        mount = mounts / "oci" / uri.removeprefix("oci://").replace(":", "/")
        folder = mount / "models" if (mount / "models").is_dir() else mount
    elif _CLAIM.fullmatch(claim) and (uri == source or uri.startswith(f"{source}/")):
        mount = mounts / claim / "models" / hashlib.sha256(source.encode()).hexdigest()[:16]
        folder = mount / uri.removeprefix(source).strip("/")
    else:
        return None
    return FolderStorage(uri, folder, bounds=mount) if folder.exists() else None


def _named(below: Path, path: str) -> Path:
    """What a URI's path names: as it is spelt, as KServe reads it, else with `%20` as a space."""
    spelt = below / path
    return spelt if "%" not in path or os.path.exists(spelt) else below / unquote(path)


def _remote_file(name: str, status: os.stat_result) -> RemoteFile:
    return RemoteFile(name, status.st_size, str(status.st_mtime_ns))


@contextmanager
def _open_reader(path: Path, name: str) -> Iterator[_FileReader]:
    try:
        source = path.open("rb", buffering=0)
    except OSError as error:
        raise StorageFailed(f"{name} cannot be read: {error}") from error
    with source:
        yield _FileReader(source.fileno(), name)


@dataclass(frozen=True, slots=True)
class _FileReader:
    descriptor: int
    name: str

    def read(self, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        while start < end:
            try:
                count = os.preadv(self.descriptor, [buffer[: end - start]], start)
            except OSError as error:
                raise StorageFailed(f"{self.name} cannot be read: {error}") from error
            if not count:
                raise ModelChanged(f"{self.name} became shorter while it was copied")
            start += count
            yield buffer[:count]

    def abort(self) -> None:
        """Nothing to do: a read from a disk ends soon."""


def _check_unchanged(path: Path, file: RemoteFile, name: str) -> None:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        if path.parent.is_dir():
            raise ModelChanged(f"{name} was deleted after it was listed") from error
        raise StorageFailed(f"{name} cannot be read: its folder does not exist") from error
    except OSError as error:
        raise StorageFailed(f"{name} cannot be read: {error}") from error
    if (status.st_size, str(status.st_mtime_ns)) != (file.size_bytes, file.version):
        raise ModelChanged(f"{name} was replaced after it was listed")


FETCH_TIMEOUT_S = 3600.0
FIRST_BYTE_TIMEOUT_S = 20.0
"""Without a byte of the model until then the storage counts as unreachable. Libraries retry longer,
those of Google 120 s, while a request waits."""
POLL_INTERVAL_S = 0.25
MIN_FREE_BYTES = 64 * 1024**2


def fetched_folder(
    uri: str,
    staging: Path,
    access: StorageAccess,
    model_format: str = "huggingface",
    *,
    max_bytes: int = MAX_WEIGHT_BYTES,
    first_byte_timeout_s: float = FIRST_BYTE_TIMEOUT_S,
    ticket: LoadTicket | None = None,
) -> FolderStorage:
    """All files of the model, which are fetched first, unless they are in `staging`. Blocks.

    The libraries of `hf://` and of the schemes of KServe's storage library read settings from their
    environment and cannot be stopped, so a process (`library_fetch`) runs each fetch, and is ended
    if it writes too much, takes too long, or the ticket is cancelled. The result is read as a
    folder, under the same rules.

    Raises LoadFailed, LoadCancelled.
    """
    marker = staging / "folder.json"
    if not marker.exists():
        ticket = ticket or LoadTicket()
        limits = (max_bytes, first_byte_timeout_s)
        _Fetch(uri, staging, access, model_format, *limits, ticket).run(marker)
    return FolderStorage(uri, Path(json.loads(marker.read_text())))


@dataclass(frozen=True, slots=True)
class _Fetch:
    uri: str
    staging: Path
    access: StorageAccess
    model_format: str
    max_bytes: int
    first_byte_timeout_s: float
    ticket: LoadTicket

    def run(self, marker: Path) -> None:
        self.staging.mkdir(parents=True, exist_ok=True)
        log = self.staging / "log.txt"
        command = [
            sys.executable,
            "-m",
            "runtime.storage.library_fetch",
            self.uri,
            str(self.staging),
            self.model_format,
        ]
        if self.access.hosts is not None:
            command.append(",".join(sorted(self.access.hosts)))
        with log.open("wb") as output, _in_memory(self.access.google) as google:
            process = subprocess.Popen(
                dies_with_this_thread(command),
                cwd=Path(__file__).resolve().parent.parent,
                env=self._environment(google),
                pass_fds=() if google is None else (google,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                self._watch(process, log)
            except BaseException:
                process.kill()
                process.wait()  # else it may write what is deleted anew
                shutil.rmtree(self.staging, ignore_errors=True)
                raise
        if process.returncode or not marker.exists():
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            shutil.rmtree(self.staging, ignore_errors=True)
            reason = "".join(last) or "no reason given"
            used = self.access.describe()
            raise StorageFailed(
                f"{self.uri} cannot be fetched: {reason}{f'; {used}' if used else ''}"
            )

    def _environment(self, google: int | None) -> dict[str, str]:
        """Of the process; a model's own credentials share no cache of the hub with others."""
        environment = dict(self.access.environment)
        if google is not None:
            environment["GOOGLE_APPLICATION_CREDENTIALS"] = f"/proc/self/fd/{google}"
        if not self.access.is_pool:
            environment["HF_HOME"] = str(self.staging / "hub")
            environment["HF_HUB_DISABLE_XET"] = "1"  # connects outside of Python
        return environment

    def _watch(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Return when the process has ended; raises LoadFailed at a limit, LoadCancelled."""
        began_s = time.monotonic()
        has_begun = self.uri.startswith(HUB_SCHEME)  # the hub's cache is elsewhere
        while True:
            try:
                process.wait(POLL_INTERVAL_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                return
            self.ticket.raise_if_cancelled()
            fetched_bytes = folder_bytes(self.staging) - file_bytes(log)
            has_begun = has_begun or fetched_bytes > 0
            waited_s = time.monotonic() - began_s
            if not has_begun and waited_s > self.first_byte_timeout_s:
                raise StorageFailed(
                    f"{self.uri}: no byte arrived within {self.first_byte_timeout_s:g} s; can this"
                    " pod reach the storage, and has it credentials?"
                )
            if fetched_bytes > self.max_bytes:
                raise ModelInvalid(
                    f"{self.uri} has more than {self.max_bytes} bytes, the limit of a model's files"
                )
            status = os.statvfs(self.staging)
            if status.f_bavail * status.f_frsize < MIN_FREE_BYTES:
                raise DiskFull(f"{self.uri} fills the disk of {self.staging}: free some space")
            if waited_s > FETCH_TIMEOUT_S:
                raise StorageFailed(f"{self.uri} was not fetched within {FETCH_TIMEOUT_S:g} s")


@contextmanager
def _in_memory(text: str) -> Iterator[int | None]:
    """A file that no disk ever holds; None without a text."""
    if not text:
        yield None
        return
    descriptor = os.memfd_create("credentials")
    try:
        os.write(descriptor, text.encode())
        yield descriptor
    finally:
        os.close(descriptor)
