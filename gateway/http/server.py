"""uvicorn's HTTP/1.1 server, with inference requests handled without ASGI.

Other requests, which FastAPI serves, are delegated to uvicorn. A running request is notified at
once when its client disconnects, so that its slot is freed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http import openai
from gateway.http.client_request import ClientRequest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from gateway.http.routes import ModelTarget

    ResolveTarget = Callable[[bytes, bytes], ModelTarget | None]
    HandleInference = Callable[[ClientRequest], Awaitable[None]]

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line and headers together; one read of the socket may exceed it before it is checked."""
_HEAD_TOO_LONG: Final = b"Request line and headers are longer than %d bytes.\n" % MAX_HEAD_BYTES
_INFERENCE_SUFFIXES: Final = (
    b"/infer", b":predict", *(f"/{endpoint}".encode() for endpoint in openai.ENDPOINTS),
)  # fmt: skip


class GatewayProtocol(HttpToolsProtocol):
    def __init__(
        self, resolve_target: ResolveTarget, handle_inference: HandleInference, **uvicorn: Any
    ) -> None:
        super().__init__(**uvicorn)
        self._resolve_target = resolve_target
        self._handle_inference = handle_inference
        self._host = b""
        self._idle_since_s: float | None = None
        """Loop time since which no request is served and no head is complete."""
        self._is_in_head = False
        self._head_bytes = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._request: ClientRequest | None = None
        """The request that is being parsed, if it is an inference request."""
        self._served: Any = None
        """The cycle served now or last; `cycle` is the last one parsed, and may be pipelined."""

    # Parser callbacks

    def on_message_begin(self) -> None:
        """Reset the parser state; uvicorn's scope is built only for requests delegated to it."""
        self.url = self._host = b""
        self.expect_100_continue = False
        self.headers = []
        self._request = None
        self._is_in_head = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name == b"host":
            self._host = value
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._idle_since_s = None
        if self.parser.should_upgrade():
            return  # the parser does not parse the body: `data_received` starts over
        target = None
        if self.url.endswith(_INFERENCE_SUFFIXES) or b"?" in self.url:
            path = httptools.parse_url(self.url).path
            if self.parser.get_method() == b"POST" and path:
                target = self._resolve_target(path, self._host)
        if target is None:
            self._delegate_to_uvicorn()
            return
        headers, self.headers = self.headers, []  # trailers go to another list
        previous = self.cycle
        self._request = ClientRequest(target, headers, self, self._handle_inference)
        self.cycle = self._request  # type: ignore[assignment]
        if previous is None or previous.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # pipelined
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _delegate_to_uvicorn(self) -> None:
        url, headers, expects_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects_continue
        self.headers += headers
        super().on_headers_complete()
        self.headers = []

    def on_body(self, body: bytes) -> None:
        if self._request is None:
            super().on_body(body)
        elif not self._request.response_complete:
            self._request.feed(body)

    def on_message_complete(self) -> None:
        if self._request is None:
            if not self.parser.should_upgrade():
                super().on_message_complete()
        elif not self._request.response_complete:
            self._request.feed_end()

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The timeout between requests also limits the time to the first complete head."""
        super().connection_made(transport)
        self._start_idle_timer()

    def data_received(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                if self._is_in_head:
                    self._count_head(len(data))
                return
            except httptools.HttpParserError:
                self._reject_invalid()
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])

    def _count_head(self, byte_count: int) -> None:
        self._head_bytes += byte_count
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            lines = (
                b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
                b"content-type: text/plain; charset=utf-8\r\n",
                b"content-length: %d\r\nconnection: close\r\n\r\n" % len(_HEAD_TOO_LONG),
                _HEAD_TOO_LONG,
            )
            self.transport.write(b"".join(lines))
            self.transport.close()

    def _reject_invalid(self) -> None:
        message = "Invalid HTTP request received."
        self.logger.warning(message)
        self.send_400_response(message)

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request without its offer to upgrade, to be parsed instead (RFC 9110, 7.8).

        The parser treats the bytes after such a head as another protocol, and later as another
        request, even where they are the request's body.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._reject_invalid()
            return b""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b\r\n" % (method, self.url, version)]
        lines += [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return b"".join(lines) + b"\r\n" + rest

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._served = cycle
        if isinstance(cycle, ClientRequest):
            cycle.start()
        else:
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Serve the next pipelined request, if any; else start the idle timer.

        One timer per connection, which checks how long the connection has been idle: uvicorn's
        timer per response costs more.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._start_idle_timer()

    def _start_idle_timer(self) -> None:
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since_s is None:
            return
        rest_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if rest_s <= 0:
            self.timeout_keep_alive_handler()
        else:
            self._idle_timer = self.loop.call_later(rest_s, self._check_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        served = self._served
        if served is not None and not served.response_complete:
            served.disconnected = True
            served.message_event.set()
        if isinstance(served, ClientRequest):
            served.connection_lost()


def create_protocol(
    resolve_target: ResolveTarget, handle_inference: HandleInference
) -> Callable[..., GatewayProtocol]:
    """The protocol factory that uvicorn calls for each connection."""
    return partial(GatewayProtocol, resolve_target, handle_inference)
