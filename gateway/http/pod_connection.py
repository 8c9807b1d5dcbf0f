"""Connections to pods: their responses' heads are parsed once, as most have been seen before."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from common.http_client import MAX_IDLE_S, ConnectionPool
from common.http_connection import Connection, InvalidResponse, NotConnected
from common.http_headers import Headers
from common.pod_responses import (
    FAILURE_STATUSES,
    MAX_BODY_BYTES,
    QueueProxyFailure,
    classify_failure,
    usual_times_ms,
)
from common.pod_secret import PodSecret
from common.tls import PartTls
from gateway.errors import GatewayError, UpstreamLost
from gateway.http.pod_response import (
    LENGTH,
    TIMING,
    KnownResponses,
    PodResponse,
    Shape,
    read_response,
    shape_of,
    stage_times_ms,
)

CONNECT_TIMEOUT_S: Final = 1.0
_MAX_IDLE: Final = 1024
_NO_TIMES: Final = (0.0, 0.0, 0.0, 0.0)
_MAX_DIGITS: Final = 15


class PodUnreachable(GatewayError):
    """No connection to the pod: it received nothing of the request."""


class PodConnectionLost(UpstreamLost):
    """The connection broke before the response was complete: the pod may have begun to execute."""

    def __init__(self, message: str, *, was_reused: bool) -> None:
        super().__init__(message)
        self.was_reused = was_reused


class Owner(Protocol):
    """A request that waits for its response without a task."""

    def on_response(self, connection: "PodConnection", /) -> None:
        """Something of it has come, or the connection has ended; called once."""


class PodConnection(Connection):
    """One connection, one exchange at a time; `wait_head` and `wait_body` raise PodConnectionLost.

    A response whose head is known does not come to the parser: its body is counted.
    """

    response: PodResponse
    """What its head says, once it is there."""
    length = timing = b""
    """Values of `content-length` and `server-timing`."""
    times_ms = _NO_TIMES
    """What `timing` says."""
    usual_timing = b""
    """`timing`, if it tells just these times."""
    _left_bytes = 0
    """Of the body behind a known head."""
    _unknown: Shape | None = None
    """Of a head that is to be parsed."""
    _forward: Callable[[], bool] | None = None
    owner: Owner | None = None

    def __init__(self, known: KnownResponses) -> None:
        self._known = known
        self._shape: Shape | None = None
        """Of the last known head: the next one is like it, mostly."""
        self._response: PodResponse | None = None
        """That of `_shape`."""
        super().__init__()

    @property
    def is_usual(self) -> bool:
        """Whether the response is one to a warm request, with a length, and nothing to be told."""
        return bool(self.length) and self.response.is_usual

    @property
    def all_headers(self) -> Headers:
        values = {LENGTH: self.length, TIMING: self.timing}
        return self.headers or [
            (name, values.get(name, value)) for name, value in self.response.headers
        ]

    async def stream(self, forward: Callable[[], bool]) -> None:
        """Call `forward` whenever a part of the body has come, until it returns False.

        Raises PodConnectionLost. A caller that waited for each part would cost more than the part.
        """
        if self.has_body and not forward():
            return
        self._forward = forward
        try:
            while self._forward is not None:
                await self._wait()
        finally:
            self._forward = None

    def _wake(self) -> None:
        if self.owner is not None:
            owner, self.owner = self.owner, None
            owner.on_response(self)
        elif self._forward is not None:
            if self.has_body and not self._forward():
                self._forward = None
            elif not self.is_closed:
                return
        Connection._wake(self)

    def _lost(self) -> Exception:
        if isinstance(self._error, InvalidResponse):  # sent again, it would be executed twice
            return PodConnectionLost(
                f"the pod's answer is invalid: {self._error}", was_reused=False
            )
        if self.has_head:
            text = "the pod closed the connection during its response"
            return PodConnectionLost(text, was_reused=False)
        text = "the pod closed the connection before its response"
        return PodConnectionLost(text, was_reused=self.used_total > 1)

    def _has_length(self) -> bool:
        return bool(self.length) or super()._has_length()

    # Of the event loop and the parser

    def data_received(self, data: bytes) -> None:
        if self._left_bytes:
            self._count(data)
        elif self.received_bytes or not self.used_total or not self._take_known(data):
            super().data_received(data)

    def _take_known(self, data: bytes) -> bool:
        """Begin a response whose head was parsed before, but for its length and times."""
        shape, response, found = self._shape, self._response, None
        self._unknown = None
        if shape is not None:
            found = shape.split(data)
        if shape is None or found is None:
            shape = self._unknown = shape_of(data)
            response = self._known.of(shape)
            found = None if shape is None else shape.split(data)
        if shape is None or found is None or response is None:
            return False
        self._shape, self._response, self._unknown = shape, response, None
        length, timing, body = found
        times_ms = usual_times_ms(timing) if timing else _NO_TIMES
        if times_ms is None or not length.isdigit() or len(length) > _MAX_DIGITS:
            return False
        left_bytes = int(length) - len(body)
        if left_bytes < 0:
            return False
        self.response, self.length, self.times_ms = response, length, times_ms
        self.timing = self.usual_timing = timing
        self.received_bytes, self._left_bytes = len(data), left_bytes
        self.status, self.has_head, self._keeps_alive = response.status, True, True
        self.is_complete = not left_bytes
        if self._writable is not None:
            self.resume_writing()
        if body:
            self._chunks.append(body)
        self._wake()
        return True

    def _count(self, data: bytes) -> None:
        """Take a part of the body behind a known head."""
        self._left_bytes -= len(data)
        if self._left_bytes <= 0:
            self.is_complete = True
        if self._left_bytes < 0:  # a second response, which belongs to no request
            data = data[: self._left_bytes]
            self._left_bytes = 0
            self.close()
        self.on_body(data)
        self._wake()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.has_head:
            return
        values = dict(self.headers)
        self.length, self.timing = values.get(LENGTH, b""), values.get(TIMING, b"")
        self.times_ms, self.usual_timing = stage_times_ms(self.timing), b""
        self.response = read_response(self.status, self.headers)
        shape = self._unknown
        if shape is None or shape.has_timing is not bool(self.timing):
            return
        if self._parser.should_keep_alive():
            self._known.keep(shape, self.response)


class PodConnectionPool(ConnectionPool[PodConnection]):
    """Idle connections by pod address, and what requests to pods need: the secret, and TLS."""

    def __init__(
        self,
        secret: PodSecret | None = None,
        tls: PartTls | None = None,
        *,
        max_idle_s: float = MAX_IDLE_S,
    ) -> None:
        """`max_idle_s`: well below the time after which the servers close idle connections."""
        self.secret = secret or PodSecret()
        self.tls = tls or PartTls()
        super().__init__(
            partial(PodConnection, KnownResponses()),
            self.tls.connect_options,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            max_idle_s=max_idle_s,
            max_idle=_MAX_IDLE,
        )

    async def connect(self, address: str) -> PodConnection:
        """A new connection to the pod. Raises PodUnreachable."""
        try:
            return await super().connect(address)
        except NotConnected as error:
            cause = error.__cause__
            raise PodUnreachable(f"no connection to the pod at {address}: {cause}") from cause

    async def close_idle_periodically(self) -> None:
        """Until cancelled; also drops addresses of pods that are gone."""
        while True:
            await asyncio.sleep(self.max_idle_s / 2)
            self.close_idle_since(asyncio.get_running_loop().time() - self.max_idle_s)


MESSAGES: Final = {
    QueueProxyFailure.NOT_REACHED: "the pod was lost during the request",
    QueueProxyFailure.BROKEN: (
        "the pod's connection broke without a response; it may have executed the request"
    ),
    QueueProxyFailure.FULL: "the pool's containerConcurrency is reached at the pod",
}
"""Error message by cause, where the request cannot be retried."""
_PROBE_TIMEOUT_S: Final = 5.0
_PROBES: Final = 5
_PROBE_PAUSE_S: Final = 0.05


def is_from_pod(response: PodResponse) -> bool:
    return bool(response.status not in FAILURE_STATUSES or response.pod or response.not_executed)


async def classify_response(
    connection: PodConnection, connections: PodConnectionPool, address: str
) -> QueueProxyFailure:
    """Why the pod itself did not respond. Raises PodConnectionLost."""
    cause = await _read(connection)
    if cause is QueueProxyFailure.BROKEN and await has_died(connections, address):
        return QueueProxyFailure.NOT_REACHED  # the pod is dead, and so is any execution in it
    return cause


async def _read(connection: PodConnection) -> QueueProxyFailure:
    body = b"".join(connection.take_body())
    while not connection.is_complete and len(body) < MAX_BODY_BYTES:
        await connection.wait_body()
        body += b"".join(connection.take_body())
    return classify_failure(connection.status, body)


async def has_died(connections: PodConnectionPool, address: str) -> bool:
    """True if the container behind the queue-proxy does not respond, or both are gone.

    A process that is being killed may still accept a connection, which then breaks off.
    """
    for _ in range(_PROBES):
        try:
            connection = await connections.connect(address)
        except PodUnreachable:
            return True
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                return await _is_container_gone(connection, address)
        except PodConnectionLost:
            await asyncio.sleep(_PROBE_PAUSE_S)
        except (TimeoutError, UpstreamLost):
            return False
        finally:
            connection.close()
    return False


async def _is_container_gone(connection: PodConnection, address: str) -> bool:
    connection.start()
    connection.write(f"GET /v2/health/live HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
    await connection.wait_head()
    if is_from_pod(connection.response):
        return False
    cause = await _read(connection)
    return cause in (QueueProxyFailure.NOT_REACHED, QueueProxyFailure.BROKEN)
