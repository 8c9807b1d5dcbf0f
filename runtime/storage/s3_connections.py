"""Plain HTTP connections to S3 for the bytes of objects; boto3 signs, lists and knows the endpoint.

boto3's own streams copy each byte several times: reading presigned URLs into one buffer is more
than twice as fast. Connections are kept for the next file and are bounded for the whole pod.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from runtime.errors import ModelChanged, StorageFailed
from runtime.storage.ranged_download import BrokenOff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_CONNECTIONS = 32
LONGEST_IDLE_S = 8.0
"""Servers close idle connections, some after ten seconds."""
LONGEST_ERROR_BYTES = 4096
RETRIED: Final = frozenset({408, 425, 429})
PARTIAL_CONTENT: Final = 206
FAULTS = (OSError, http.client.HTTPException)


class S3Connections:
    """All connections of a pod to one endpoint."""

    def __init__(self, *, verify: bool | str, timeout_s: float) -> None:
        self._verify = verify
        self._timeout_s = timeout_s
        self._idle: deque[tuple[float, str, http.client.HTTPConnection]] = deque()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._tls: ssl.SSLContext | None = None
        self._is_closed = False

    @contextmanager
    def reader(self, sign: Callable[[], str], etag: str, size_bytes: int) -> Iterator[S3Reader]:
        """A reader of one object for one thread; `sign` gives a URL that is good for a while."""
        with self._free:
            reader = S3Reader(self, sign, etag, size_bytes)
            try:
                yield reader
            finally:
                reader.close()

    def take(self, url: str) -> http.client.HTTPConnection:
        """A connection to the URL's server, used before or new."""
        place = _place_of(url)
        with self._lock:
            while self._idle:
                since_s, of_place, connection = self._idle.pop()
                if of_place == place and time.monotonic() - since_s < LONGEST_IDLE_S:
                    return connection
                connection.close()
        return self._make(place)

    def give_back(self, url: str, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose last answer was read to its end."""
        with self._lock:
            self._idle.append((time.monotonic(), _place_of(url), connection))
            if self._is_closed or len(self._idle) > MOST_CONNECTIONS:
                self._idle.popleft()[2].close()

    def close(self) -> None:
        """Close what is idle now, and each of the others when it is given back."""
        with self._lock:
            self._is_closed = True
            while self._idle:
                self._idle.pop()[2].close()

    def target(self, url: str) -> str:
        """What the request line names: the path, or the whole URL for a proxy of plain HTTP."""
        parts = urlsplit(url)
        if parts.scheme == "http" and _proxy_of(url) is not None:
            return url
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    def _make(self, place: str) -> http.client.HTTPConnection:
        parts, proxy = urlsplit(place), _proxy_of(place)
        host, port = parts.hostname or "", parts.port
        at = urlsplit(proxy) if proxy is not None else None
        reached = (host, port) if at is None else (at.hostname or "", at.port)
        if parts.scheme == "http":
            return http.client.HTTPConnection(*reached, timeout=self._timeout_s)
        connection = http.client.HTTPSConnection(
            *reached, timeout=self._timeout_s, context=self._context()
        )
        if at is not None:
            connection.set_tunnel(host, port or 443)
        return connection

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                bundle = self._verify if isinstance(self._verify, str) else None
                self._tls = ssl.create_default_context(cafile=bundle)
                if self._verify is False:
                    self._tls.check_hostname = False
                    self._tls.verify_mode = ssl.CERT_NONE
            return self._tls


def _place_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for a URL, as boto3 has it."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class S3Reader:
    """Reads ranges of one version of one object."""

    def __init__(
        self, connections: S3Connections, sign: Callable[[], str], etag: str, size_bytes: int
    ) -> None:
        self._connections = connections
        self._sign = sign
        self._etag = etag
        self._size_bytes = size_bytes
        self._connection: http.client.HTTPConnection | None = None
        self._reading: http.client.HTTPConnection | None = None
        self._is_aborted = False
        self._url = ""

    def abort(self) -> None:
        """Shut the connection that a read in another thread waits for; nothing is read any more."""
        self._is_aborted = True
        reading = self._reading
        taken = reading.sock if reading is not None else None  # its reader may close it meanwhile
        if taken is not None:
            with suppress(OSError):  # it ended by itself
                taken.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back, where it is good for another request."""
        if self._connection is not None:
            self._connections.give_back(self._url, self._connection)
            self._connection = None

    def read(self, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        """Bytes [start, end); raises BrokenOff, ModelChanged, StorageFailed."""
        self._url = self._sign()
        connection = self._connection or self._connections.take(self._url)
        self._connection, self._reading = None, connection
        is_whole = False
        try:
            if self._is_aborted:
                raise BrokenOff("the load was given up")
            answer = self._ask(connection, start, end)
            while start < end:
                count = answer.readinto(buffer[: end - start])
                if not count:
                    return
                start += count
                is_whole = start == end and answer.isclosed()
                yield buffer[:count]
        except FAULTS as error:
            raise BrokenOff(f"{type(error).__name__}: {error}") from error
        finally:
            self._reading = None
            if is_whole:
                self._connection = connection
            else:
                connection.close()

    def _ask(
        self, connection: http.client.HTTPConnection, start: int, end: int
    ) -> http.client.HTTPResponse:
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if self._etag:
            headers["If-Match"] = f'"{self._etag}"'
        connection.request("GET", self._connections.target(self._url), headers=headers)
        answer = connection.getresponse()
        is_right = (start, end) == (0, self._size_bytes) or answer.getheader("Content-Range")
        if answer.status == PARTIAL_CONTENT or (answer.status == http.HTTPStatus.OK and is_right):
            self._check_version(answer, start, end)  # rclone's status is 200 also for ranges
            return answer
        raise _refusal(answer, urlsplit(self._url).path)

    def _check_version(self, answer: http.client.HTTPResponse, start: int, end: int) -> None:
        """Not every server heeds `If-Match`: look at what it says that it sends."""
        etag = plain_etag(answer.getheader("ETag", self._etag))
        expected = f"bytes {start}-{end - 1}/{self._size_bytes}"
        seen = answer.getheader("Content-Range", expected)
        if etag != self._etag or seen != expected:
            raise ModelChanged(
                f"{unquote(urlsplit(self._url).path)} was replaced after it was listed:"
                f" wanted {expected} of {self._etag}, the server has {seen} of {etag}"
            )


def plain_etag(text: str) -> str:
    """An ETag without its quotes, which some servers leave out in listings."""
    return text.strip('"')


def _refusal(answer: http.client.HTTPResponse, path: str) -> Exception:
    """What an answer without the bytes means: try again, another version, or give up."""
    text = answer.read(LONGEST_ERROR_BYTES).decode(errors="replace")
    code = re.search(r"<Code>([^<]*)</Code>", text)
    told = f"{unquote(path)}: {answer.status} {code[1] if code else answer.reason}"
    if answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR or answer.status in RETRIED:
        return BrokenOff(told)
    if answer.status == http.HTTPStatus.OK:
        return StorageFailed(f"{told}: the server does not send ranges")
    if answer.status in {http.HTTPStatus.PRECONDITION_FAILED, http.HTTPStatus.NOT_FOUND}:
        return ModelChanged(f"{told}: it was replaced or deleted after it was listed")
    return StorageFailed(f"{told}: the object cannot be read")
