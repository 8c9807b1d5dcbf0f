"""The folder of tier `host` on a node, shared by its pods: membership, locks, files and sockets.

Each pod inside has a shared lock that ends with its process. The last pod that leaves clears the
folder: its memory would otherwise be taken until the node restarts.

A pod that reaches a socket in it runs under the kernel of the one that listens: the address of a
socket says nothing to the kernel of another node. Both check that the other has their own user.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from runtime.storage.listing import RemoteFile
from runtime.storage.partial_file import PARTIAL_SUFFIX
from runtime.tiers.generation_folder import cache_name, key_of_cache_name

MEMBERS = ".pods"
CHANGES = ".lock"
WANTED = ".room-wanted"
DEFAULT_BASE = Path("/dev/shm")
IMAGE_SUFFIX = ".slab"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Names the running kernel: devices and inodes of other nodes may have the same numbers."""
SOCKET_SUFFIX: Final = ".socket"
BACKLOG: Final = 128
_PEER_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user, group: `struct ucred` of unix(7)."""


class HostFolderUnusable(Exception):
    """The folder cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class HostFile:
    """A complete or partial image in the folder."""

    path: Path
    key: str
    size_bytes: int
    used_ns: int


class HostFolder:
    """A folder that this pod has entered. Methods block."""

    def __init__(self, path: Path, budget_bytes: int) -> None:
        """Enter, creating the folder if necessary; raises HostFolderUnusable."""
        self.path = path
        try:
            self._members = self._enter()
        except OSError as error:
            raise HostFolderUnusable(f"{path} cannot be used: {error}") from error
        try:
            _check_usable(path, budget_bytes)
        except HostFolderUnusable:
            self.leave()
            raise
        self._wanted_ns = self._last_wanted_ns()

    @property
    def identity(self) -> str:
        """The same for all pods that are in the folder, and for no others."""
        found = os.fstat(self._members)
        return f"{BOOT_ID.read_text().strip()}:{found.st_dev}:{found.st_ino}"

    def _enter(self) -> int:
        while True:
            if self.path.is_relative_to(DEFAULT_BASE) and not DEFAULT_BASE.is_dir():
                raise FileNotFoundError(f"there is no {DEFAULT_BASE}")
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                descriptor = os.open(self.path / MEMBERS, flags, 0o600)
            except FileNotFoundError:
                continue  # the last pod cleared the folder just now
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The right to add and delete files, for one pod at a time."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.path / CHANGES, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def want_room(self) -> None:
        """Ask the other pods to let go of images that they only keep for later."""
        (self.path / WANTED).touch(mode=0o600)
        self._wanted_ns = self._last_wanted_ns()

    def is_room_wanted(self) -> bool:
        """Whether another pod has asked since the last call."""
        before, self._wanted_ns = self._wanted_ns, self._last_wanted_ns()
        return self._wanted_ns != before

    def _last_wanted_ns(self) -> int:
        try:
            return (self.path / WANTED).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def leave(self) -> None:
        """Leave the folder, and clear it if no other pod is inside."""
        try:
            fcntl.flock(self._members, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(self._members)

    def files(self, suffix: str) -> list[HostFile]:
        """The files of models with this suffix; raises OSError."""
        found = []
        for path in self.path.glob(f"*{suffix}"):
            name = path.name.removesuffix(PARTIAL_SUFFIX).rsplit(".", 2)[0]
            key = key_of_cache_name(name)
            if key is None:
                continue
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append(HostFile(path, key, status.st_size, status.st_mtime_ns))
        return found

    def image_path(self, key: str, files: Sequence[RemoteFile]) -> Path:
        """The image of a model; its name changes with the files that the image is made from.

        And with the version of transformers, which tells the form of the weights in it.
        """
        rows = sorted((file.path, file.size_bytes, file.version) for file in files)
        digest = hashlib.sha256(repr((_transformers(), rows)).encode()).hexdigest()[:16]
        return self.path / f"{cache_name(key)}.{digest}{IMAGE_SUFFIX}"


@cache
def _transformers() -> str:
    return metadata.version("transformers")


def partial_path(image: Path) -> Path:
    """The name of an image while it is written."""
    return image.with_name(image.name + PARTIAL_SUFFIX)


def lock_if_free(descriptor: int, operation: int) -> bool:
    """Lock an open file without waiting; False if another process has it locked."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def delete_if_free(path: Path) -> bool:
    """Delete a file; False if a process has it locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not lock_if_free(descriptor, fcntl.LOCK_EX):
            return False
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def _check_usable(path: Path, budget_bytes: int) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise HostFolderUnusable(
            f"{path} must be a folder of user {os.getuid()} that others cannot write to,"
            f" is of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}"
        )
    system = os.statvfs(path)
    size = system.f_frsize * system.f_blocks
    if size < budget_bytes:
        raise HostFolderUnusable(
            f"the file system of {path} has {size} bytes, fewer than the budget of {budget_bytes};"
            " lower host-bytes, or mount a larger emptyDir with `medium: Memory` there"
        )


class HostSockets:
    """The sockets in a folder that this pod has entered. Methods block, except `may_have`."""

    def __init__(self, folder: HostFolder) -> None:
        self._folder = folder

    @property
    def identity(self) -> str:
        """The same for all pods that find each other here."""
        return self._folder.identity

    def listen(self, address: str) -> socket.socket:
        """A non-blocking listener, found by the pod's `host:port`. Raises OSError.

        Deletes sockets that killed pods left behind.
        """
        path = self._path(address)
        listener = _new_socket()
        try:
            with self._folder.changing(), _short_path(path) as short:
                self._delete_dead()
                path.unlink(missing_ok=True)
                listener.bind(short)
                path.chmod(0o600)
                listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        listener.setblocking(False)
        return listener

    def may_have(self, address: str) -> bool:
        """Whether a pod with this address has or had a socket here."""
        return self._path(address).exists()

    def connect(self, address: str, timeout_s: float) -> socket.socket:
        """A connection to the pod of this address, on this node and of this user. Raises OSError.

        Deletes the socket if its pod was killed.
        """
        connection = _new_socket()
        try:
            connection.settimeout(timeout_s)
            with _short_path(self._path(address)) as short:
                connection.connect(short)
            check_user(connection)
        except OSError as error:
            connection.close()
            if isinstance(error, ConnectionRefusedError):
                with self._folder.changing():
                    self._delete_dead()
            raise
        return connection

    def remove(self, address: str) -> None:
        """Remove this pod's own socket."""
        self._path(address).unlink(missing_ok=True)

    def _path(self, address: str) -> Path:
        digest = hashlib.sha256(address.encode()).hexdigest()[:32]
        return self._folder.path / f"{digest}{SOCKET_SUFFIX}"

    def _delete_dead(self) -> None:
        """Delete sockets without a listener, under the lock that `listen` holds as well."""
        for path in self._folder.path.glob(f"*{SOCKET_SUFFIX}"):
            with _new_socket() as probe, suppress(OSError), _short_path(path) as short:
                probe.setblocking(False)
                try:
                    probe.connect(short)
                except ConnectionRefusedError:
                    path.unlink(missing_ok=True)


def check_user(connection: socket.socket) -> None:
    """Raise PermissionError unless the process at the other end has this process's user."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size
    )
    _, user, _ = _PEER_CREDENTIALS.unpack(credentials)
    if user != os.getuid():
        raise PermissionError(f"the peer must be of user {os.getuid()}, is of user {user}")


def _new_socket() -> socket.socket:
    """One that keeps the boundaries of messages."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A name of any path that fits into the 107 bytes of a socket's address."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
