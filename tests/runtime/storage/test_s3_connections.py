"""Connections to S3, which the event loop may abort during a read in another thread."""

import http.client
import socket

import pytest

from runtime.storage.ranged_download import ReadInterrupted
from runtime.storage.s3_connections import S3Connections, S3Reader


class ClosedMeanwhile(http.client.HTTPConnection):
    """A connection that its reader closes right after another thread has taken its socket."""

    def __init__(self, taken: socket.socket) -> None:
        super().__init__("store")
        self._taken: socket.socket | None = taken

    @property
    def sock(self) -> socket.socket | None:
        taken, self._taken = self._taken, None
        return taken

    @sock.setter
    def sock(self, _: object) -> None:
        """Its base class writes here."""


def test_abort_of_a_read_that_just_ended_raises_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connections = S3Connections(verify=True, timeout_s=1)
        reader = S3Reader(connections, lambda: "http://store/object", "", 1)
        reader._reading = ClosedMeanwhile(ours)
        reader.abort()
        theirs.settimeout(60)
        assert theirs.recv(1) == b""


def test_abort_while_a_read_connects_ends_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        connections = S3Connections(verify=True, timeout_s=1)
        reader = S3Reader(connections, lambda: f"{url}/object", "", 1)
        connection = connections.connect(url)
        connect = connection.connect

        def aborted_while_connecting() -> None:
            reader.abort()
            connect()

        connection.connect = aborted_while_connecting  # type: ignore[method-assign]
        reader._idle = connection
        with pytest.raises(ReadInterrupted, match="the load was cancelled"):
            next(reader.read(0, 1, memoryview(bytearray(1))))
