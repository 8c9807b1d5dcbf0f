"""Answers probes and scrapes from a thread of its own: a busy event loop does not fail them.

A task of the loop beats; the process counts as dead only when its loop has not run for a long time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S: Final = 0.5
STUCK_S: Final = 30.0
"""A loop that did not run for this long is stuck; imports, collections and large JSON take less."""
_REQUEST_TIMEOUT_S: Final = 1.0
_MAX_HEAD_BYTES: Final = 8192
_BACKLOG: Final = 128


class ProbeServer:
    """GET requests to a few paths, one per connection."""

    def __init__(
        self,
        checks: Mapping[str, Callable[[], bool]],
        pages: Mapping[str, Callable[[str], tuple[bytes, str]]] | None = None,
    ) -> None:
        """`checks` and `pages`, by path, are called in the server's thread.

        A page gets the header `accept`, and returns its content and the type of that.
        """
        self._checks = checks
        self._pages = pages or {}
        self._beat_s = time.monotonic()
        self._listener: socket.socket | None = None

    def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        threading.Thread(target=self._serve, name="probes", daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's accept
            self._listener.close()

    async def beat_periodically(self) -> None:
        """Until cancelled."""
        while True:
            self._beat_s = time.monotonic()
            await asyncio.sleep(BEAT_INTERVAL_S)

    @property
    def loop_age_s(self) -> float:
        """Time since the event loop ran."""
        return time.monotonic() - self._beat_s

    def _serve(self) -> None:
        if self._listener is None:
            return
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.01)  # too many open files, or a connection that was reset
                continue
            with connection, suppress(OSError):
                connection.settimeout(_REQUEST_TIMEOUT_S)
                self._respond(connection)

    def _respond(self, connection: socket.socket) -> None:
        head = connection.recv(_MAX_HEAD_BYTES)
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        page, check = self._pages.get(path), self._checks.get(path)
        if (page or check) and method != b"GET":
            content = json.dumps({"error": f"{path} takes the method GET"}).encode()
            refused = ("405 Method Not Allowed", "application/json", "allow: GET")
            connection.sendall(_response(content, *refused))
            return
        if page is not None:
            content, content_type = page(_accept(head))
            connection.sendall(_response(content, "200 OK", content_type))
            return
        age_s = self.loop_age_s
        if check is None:
            status = "404 Not Found"
        elif age_s < STUCK_S and check():
            status = "200 OK"
        else:
            status = "503 Service Unavailable"
        body = json.dumps({"ok": status.startswith("2"), "loop_age_seconds": round(age_s, 3)})
        connection.sendall(_response(body.encode(), status, "application/json"))


def _accept(head: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"accept":
            return value.decode("latin-1")
    return ""


def _response(body: bytes, status: str, content_type: str, *lines: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}", f"content-type: {content_type}", "connection: close",
        f"content-length: {len(body)}", *lines, "", "",
    )  # fmt: skip
    return "\r\n".join(head).encode() + body
