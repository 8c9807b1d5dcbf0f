"""Connections to pods: their responses' heads are parsed once, as most have been seen before."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from common.connection_pool import MAX_IDLE_S, ConnectionPool
from common.http_connection import Connection, InvalidResponse, NotConnected
from common.pod_responses import usual_times_ms
from common.pod_secret import PodSecret
from common.tls import PartTls
from gateway.errors import GatewayError, UpstreamLost
from gateway.http.pod_response import (
    LENGTH,
    TIMING,
    KnownResponses,
    read_response,
    stage_times_ms,
)
from gateway.request_run import waker

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.http_connection import Waiter
    from gateway.http.headers import Headers
    from gateway.http.pod_response import PodResponse, StageTimes

CONNECT_TIMEOUT_S: Final = 1.0
_MAX_IDLE: Final = 1024
_HEAD_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_LENGTH_LINE: Final = b"\r\n%b: " % LENGTH
_TIMING_LINE: Final = b"\r\n%b: " % TIMING
_LENGTH_CUT: Final = b"\r\n\0"
_TIMING_CUT: Final = b"\r\n\1"
"""In place of a line: no head that is valid has these bytes."""
_NO_TIMES: Final = (0.0, 0.0, 0.0, 0.0)
_MAX_DIGITS: Final = 15


class PodUnreachable(GatewayError):
    """No connection to the pod: it received nothing of the request."""


class PodConnectionLost(UpstreamLost):
    """The connection broke before the response was complete: the pod may have begun to execute."""

    def __init__(self, message: str, *, was_reused: bool) -> None:
        super().__init__(message)
        self.was_reused = was_reused


class PodConnection(Connection):
    """One connection, one exchange at a time; `wait_head` and `wait_body` raise PodConnectionLost.

    A response whose head is known does not come to the parser: its body is counted.
    """

    response: PodResponse
    """What its head says, once it is there."""

    def __init__(self, known: KnownResponses) -> None:
        self._known = known
        super().__init__()

    def _reset(self) -> None:
        Connection._reset(self)
        self.length = self.timing = b""
        """Values of `content-length` and `server-timing`."""
        self.times_ms = _NO_TIMES
        """What `timing` says."""
        self._left_bytes = 0
        """Of the body behind a known head."""
        self._key = b""
        """Of a head that is not known."""
        self._forward: Callable[[], bool] | None = None

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
        if self._forward is not None:
            if self.has_body and not self._forward():
                self._forward = None
            elif not self.is_closed:
                return
        Connection._wake(self)

    def _create_waiter(self) -> Waiter:
        return waker(self.loop)

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
        head, end, body = data.partition(_HEAD_END)
        before, _, rest = head.partition(_LENGTH_LINE)
        length, _, rest = rest.partition(_LINE_END)
        key, timing = before + _LENGTH_CUT + rest, b""
        times_ms: StageTimes | None = _NO_TIMES
        before, _, rest = key.partition(_TIMING_LINE)
        if rest:
            timing, _, rest = rest.partition(_LINE_END)
            key, times_ms = before + _TIMING_CUT + rest, usual_times_ms(timing)
        if not (end and times_ms and length.isdigit() and len(length) <= _MAX_DIGITS):
            return False
        response = self._known.get(key)
        if response is None:
            self._key = key
            return False
        left_bytes = int(length) - len(body)
        if left_bytes < 0:
            return False
        self.response, self.length, self.timing, self.times_ms = response, length, timing, times_ms
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
        self.times_ms = stage_times_ms(self.timing)
        self.response = read_response(self.status, self.headers)
        was_cut = bool(self.timing) is (_TIMING_CUT in self._key)
        if self._key and was_cut and self._parser.should_keep_alive():
            self._known.keep(self._key, self.response)


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
            partial(PodConnection, KnownResponses()), self.tls.connect_options,
            connect_timeout_s=CONNECT_TIMEOUT_S, max_idle_s=max_idle_s, max_idle=_MAX_IDLE,
        )  # fmt: skip

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
            await asyncio.sleep(self._max_idle_s / 2)
            self.close_idle_since(asyncio.get_running_loop().time() - self._max_idle_s)
