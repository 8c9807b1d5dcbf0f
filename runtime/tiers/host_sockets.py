"""Unix sockets of a node's pods, in the folder of tier `host`.

A pod that reaches such a socket runs under the kernel of the one that listens: the address of a
socket says nothing to the kernel of another node. Both check that the other has their own user.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runtime.tiers.host_folder import HostFolder

SOCKET_SUFFIX: Final = ".socket"
BACKLOG: Final = 128
_PEER_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user, group: `struct ucred` of unix(7)."""


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
