"""Health and metrics of a process, from a thread of its own: a busy event loop does not fail them.

A timer of the loop beats; the process counts as dead only when its loop has not run for a long
time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

logger = logging.getLogger(__name__)

_HEALTHZ, _READYZ, _METRICS = PATHS = ("/healthz", "/readyz", "/metrics")
BEAT_INTERVAL_S: Final = 0.5
STUCK_S: Final = 30.0
"""A loop that did not run for this long is stuck; imports, collections and large JSON take less."""
_REQUEST_TIMEOUT_S: Final = 1.0
_MAX_HEAD_BYTES: Final = 8192
_BACKLOG: Final = 128


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Metrics and their content type: OpenMetrics, which has exemplars, to those who accept it.

    Others get Prometheus' text format.
    """
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@contextmanager
def serving_probes(
    host: str,
    port: int,
    *,
    is_ready: Callable[[], bool],
    metrics: Callable[[str], tuple[bytes, str]],
) -> Iterator[None]:
    """Serve GET of `/healthz`, `/readyz` and `/metrics` during the body, in a running loop.

    Both functions are called in the server's thread; `metrics` with the header `accept`. Raises
    OSError if it cannot listen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    server = _ProbeServer(listener, is_ready, metrics)
    threading.Thread(target=server.serve, name="probes", daemon=True).start()
    try:
        yield
    finally:
        server.timer.cancel()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # ends the thread's accept
        listener.close()


class _ProbeServer:
    def __init__(
        self,
        listener: socket.socket,
        is_ready: Callable[[], bool],
        metrics: Callable[[str], tuple[bytes, str]],
    ) -> None:
        self._listener = listener
        self._checks = {_HEALTHZ: lambda: True, _READYZ: is_ready}
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._beat()

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self.timer = self._loop.call_later(BEAT_INTERVAL_S, self._beat)

    def serve(self) -> None:
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
                try:
                    self._respond(connection)
                except (TypeError, ValueError, LookupError, RuntimeError):
                    logger.exception("a probe failed")  # such as for the header that it sent

    def _respond(self, connection: socket.socket) -> None:
        head = connection.recv(_MAX_HEAD_BYTES)
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        is_page, check = path == _METRICS, self._checks.get(path)
        if (is_page or check) and method != b"GET":
            content = json.dumps({"error": f"{path} takes the method GET"}).encode()
            refused = ("405 Method Not Allowed", "application/json", "allow: GET")
            connection.sendall(_response(content, *refused))
            return
        if is_page:
            content, content_type = self._metrics(_accept(head))
            connection.sendall(_response(content, "200 OK", content_type))
            return
        age_s = time.monotonic() - self._beat_s
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
        f"HTTP/1.1 {status}",
        f"content-type: {content_type}",
        "connection: close",
        f"content-length: {len(body)}",
        *lines,
        "",
        "",
    )
    return "\r\n".join(head).encode() + body
