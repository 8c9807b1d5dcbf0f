"""A proxy of a real S3 server that applies faults to chosen responses and records requests."""

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.servers import S3_CREDENTIALS

HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class ProxiedRequest:
    """One request that reached the proxy."""

    method: str
    path: str
    range: tuple[int, int] | None
    """First and last byte of a ranged request."""


@dataclass(frozen=True)
class Fault:
    """A fault of one response; by default none."""

    status: int = 0
    """Respond with this instead of forwarding the request."""
    cut_at: int = -1
    """Close the connection after so many bytes of the body."""
    reset_at: int = -1
    """Reset the connection after so many bytes of the body."""
    stall_at: int = -1
    """Send nothing more after so many bytes, until the client closes."""
    bytes_per_s: float = 0
    until: threading.Event | None = None
    """Delay the response until this is set."""
    flip: int = -1
    """Invert the bits of this byte of the body."""


@dataclass
class FaultyProxy:
    """The proxy as a test sees it: its fault and the requests it received."""

    url: str
    fault: Callable[[ProxiedRequest], Fault | None] = lambda _: None
    requests: list[ProxiedRequest] = field(default_factory=list)
    max_concurrent: int = 0
    concurrent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for boto3's chain to reach the server through the proxy."""
        return {
            **S3_CREDENTIALS,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def ranges(self, name: str = "") -> list[ProxiedRequest]:
        """The ranged requests for paths that end in `name`."""
        return [each for each in self.requests if each.range and each.path.endswith(name)]


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """A running proxy of the server at `upstream`, without faults."""
    address = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond()

        def do_HEAD(self) -> None:
            self._respond()

        def _respond(self) -> None:
            seen = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            part = (int(seen[1]), int(seen[2])) if seen else None
            request = ProxiedRequest(self.command, urlsplit(self.path).path, part)
            with proxy.lock:
                proxy.requests.append(request)
                proxy.concurrent += 1
                proxy.max_concurrent = max(proxy.max_concurrent, proxy.concurrent)
            try:
                self._send(request, proxy.fault(request) or Fault())
            except OSError:
                self.close_connection = True
            finally:
                with proxy.lock:
                    proxy.concurrent -= 1

        def _send(self, request: ProxiedRequest, fault: Fault) -> None:
            if fault.until is not None:
                fault.until.wait(60)
            if fault.status:
                self._send_status(fault.status)
                return
            connection = http.client.HTTPConnection(address, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}
            target = self.path if self.path.startswith("/") else self.path.partition(address)[2]
            connection.request(self.command, target, headers=headers)
            response = connection.getresponse()
            body = response.read()
            connection.close()
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            if response.getheader("Content-Length") is None:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if request.method != "HEAD":
                self._send_body(body, fault)

        def _send_status(self, status: int) -> None:
            body = f"<Error><Code>Injected{status}</Code></Error>".encode()
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _send_body(self, body: bytes, fault: Fault) -> None:
            if fault.flip >= 0:
                at = fault.flip
                body = body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
            if fault.bytes_per_s:
                self._send_slowly(body, fault.bytes_per_s)
                return
            end = max(fault.cut_at, fault.reset_at, fault.stall_at)
            self.wfile.write(body if end < 0 else body[:end])
            if fault.stall_at >= 0:
                self.connection.recv(1)  # until the client closes
            if fault.reset_at >= 0:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            if end >= 0:
                self.close_connection = True

        def _send_slowly(self, body: bytes, bytes_per_s: float) -> None:
            step = max(1, int(bytes_per_s * 0.02))
            for at in range(0, len(body), step):
                self.wfile.write(body[at : at + step])
                time.sleep(0.02)

        def log_message(self, *_: object) -> None:
            """Keep the tests' output quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore connections of clients that tests kill."""

    server = Server(("127.0.0.1", 0), Handler)
    proxy = FaultyProxy(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
