"""Connections to S3, which the event loop may abort during a read in another thread."""

import contextlib
import http.client
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from runtime.errors import LoadCancelled
from runtime.loading.load_queue import MAX_CONCURRENT
from runtime.storage.listing import RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import SPAN_BYTES, PartialFile
from runtime.storage.ranged_download import Bandwidth, ReadInterrupted, download_ranges
from runtime.storage.s3_connections import S3Connections, S3Reader
from runtime.tiers.disk_cache import MAX_READERS
from tests.http_server import Handler, http_server


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


class Ranges(Handler):
    """Sends a small file at once, and of a large one nothing until the load is cancelled."""

    asked: threading.Semaphore

    def do_GET(self) -> None:
        begin, end = self.headers["range"].removeprefix("bytes=").split("-")
        size_bytes = int(self.path.removeprefix("/"))
        if size_bytes > SPAN_BYTES:
            self.asked.release()
            self.rfile.read()
            return
        body = bytes(int(end) - int(begin) + 1)
        self.answer(206, body, {"content-range": f"bytes {begin}-{end}/{size_bytes}"})


def test_a_small_load_has_a_connection_beside_as_many_large_ones_as_run_at_once(
    tmp_path: Path,
) -> None:
    bandwidth, connections = Bandwidth(None), S3Connections(verify=True, timeout_s=60)
    large, urgent, asked = MAX_READERS * SPAN_BYTES, LoadTicket(), threading.Semaphore(0)
    handler = type("Counted", (Ranges,), {"asked": asked})

    def download(address: str, name: str, size_bytes: int, ticket: LoadTicket) -> None:
        open_reader = partial(
            connections.reader, lambda: f"http://{address}/{size_bytes}", "", size_bytes
        )
        file = RemoteFile(name, size_bytes, "")
        with PartialFile(tmp_path / name, file) as part, bandwidth.use(ticket) as use:
            download_ranges(open_reader, part, use, name=name, readers=MAX_READERS)

    with http_server(handler) as address, ThreadPoolExecutor(MAX_CONCURRENT + 1) as threads:
        others = [
            threads.submit(download, address, f"large{number}", large, urgent)
            for number in range(MAX_CONCURRENT)
        ]
        try:
            for _ in range(2 * MAX_READERS):
                assert asked.acquire(timeout=60)
            threads.submit(download, address, "small", 1000, LoadTicket()).result(timeout=30)
        finally:
            urgent.cancel("of the test")
            for each in others:
                with contextlib.suppress(LoadCancelled):
                    each.result()
