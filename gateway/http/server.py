"""uvicorn's HTTP/1.1 server, with inference requests handled without ASGI.

Other requests, which FastAPI serves, are delegated to uvicorn. A running request is notified at
once when its client disconnects, so that its slot is freed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from common.http_connection import MAX_JOINED
from common.http_server import head_without_upgrade
from common.shown_value import shown
from gateway.http import openai
from gateway.http.client_request import ClientRequest, DelegatedRequest, InferenceConnection
from gateway.http.headers import (
    MAX_HEAD_BYTES,
    MAX_TARGET_BYTES,
    InvalidFraming,
    KnownHead,
    KnownHeads,
    check_coding,
    check_length,
    head_too_long,
    host_error,
    not_http,
    target_too_long,
)
from gateway.http.listener import ConnectionStarts, Lingering
from gateway.http.routes import INFERENCE_SUFFIXES
from gateway.http.targets import ModelTarget

ResolveTarget = Callable[[bytes, bytes], ModelTarget | None]
HandleInference = Callable[[ClientRequest], Awaitable[None]]
TakeWarm = Callable[[InferenceConnection, KnownHead, bytes, float], Any]
"""The cycle of a request whose head is known, and its body; None: it is to be a ClientRequest."""


logger = logging.getLogger(__name__)

_INFERENCE_SUFFIXES: Final = (
    *(suffix.encode() for suffix in INFERENCE_SUFFIXES),
    *(f"/{endpoint}".encode() for endpoint in openai.ENDPOINTS),
)

_HEAD_END: Final = b"\r\n\r\n"


class GatewayProtocol(InferenceConnection):
    _host = _path = b""
    """Of the latest request, and the latest inference request, that was parsed."""
    _host_count = 0
    _coding: bytes | None = None
    """The head's `transfer-encoding`."""
    _idle_since_s: float | None = None
    """Loop time since which no request is served and no head is complete."""
    _idle_timer: asyncio.TimerHandle | None = None
    _field_bytes = 0
    """Received since the last head, part of a body, or end of a message."""
    _is_in_body = False
    _is_between = True
    """The parser has begun no message, or has parsed all of the last one."""
    _is_parsing = False
    _refusal: bytes | None = None
    """Response to invalid bytes, sent after those to the requests before them."""
    _lingering: Lingering | None = None
    """The last response was sent, and what the client still sends is dropped."""
    _request: ClientRequest | None = None
    """The request that is being parsed, if it is an inference request."""
    _ready: Any = None
    """To be served as soon as the bytes are parsed that its head came with."""
    _served: Any = None
    """The cycle served now or last; `cycle` is the last one parsed, and may be pipelined."""
    _unread_s = 0.0
    _is_new = False
    """The bytes came with the connection: their request waits for no turn."""
    _is_first = True
    """The request is the connection's first."""

    def __init__(
        self,
        resolve_target: ResolveTarget,
        handle_inference: HandleInference,
        starts: ConnectionStarts,
        heads: KnownHeads,
        take_warm: TakeWarm | None = None,
        **uvicorn: Any,
    ) -> None:
        super().__init__(**uvicorn)
        self._take_warm = take_warm
        self._starts = starts
        self.heads = heads
        self._resolve_target = resolve_target
        self.handle_inference = handle_inference

    # Parser callbacks

    def on_message_begin(self) -> None:
        """Reset the parser state; uvicorn's scope is built only for requests delegated to it."""
        self._is_between = False
        self.url = self._host = b""
        self._host_count = 0
        self._coding = None
        self.expect_100_continue = False
        self.headers = []
        self._request = None

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_TARGET_BYTES:
            raise target_too_long(len(self.url))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name == b"host":
            self._host = value
            self._host_count += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"transfer-encoding":
            self._coding = value if self._coding is None else b"%b, %b" % (self._coding, value)

    def on_headers_complete(self) -> None:
        if self._field_bytes > MAX_HEAD_BYTES:  # with what was read behind the head
            check_length(self.headers, self.url)
        self._field_bytes = 0
        self._idle_since_s = None
        if self.parser.should_upgrade():
            return  # the parser does not parse the body: `data_received` starts over
        if self._coding is not None:
            check_coding(self._coding)
        is_required = self._host_count == 0 and self.parser.get_http_version() == "1.1"
        error = host_error(self._host, self._host_count, is_required=is_required)
        if error is not None:
            raise InvalidFraming(error)
        if not self.url.startswith(b"/") and self.url != b"*":
            raise InvalidFraming(f"the request target must be a path; was {shown(self.url)}")
        target = None
        if self.url.endswith(_INFERENCE_SUFFIXES) or b"?" in self.url:
            path = httptools.parse_url(self.url).path
            if self.parser.get_method() == b"POST" and path:
                target = self._resolve_target(path, self._host)
        if target is None:
            self._delegate_to_uvicorn()
            self._is_in_body = True
            return
        headers, self.headers = self.headers, []  # trailers go to another list
        self._is_in_body = True
        previous = self.cycle
        self._request = ClientRequest(target, headers, self, self._unread_s)
        self._path = path
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
        self._field_bytes = 0
        if self._request is None:
            super().on_body(body)
        elif not self._request.response_complete:
            self._request.feed(body)

    def on_message_complete(self) -> None:
        self._field_bytes = 0
        self._is_in_body = False
        self._is_between = True
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

    def receive_first(self, data: bytes, unread_s: float) -> None:
        """As `data_received`, for bytes that came with the connection, `unread_s` ago."""
        if self.transport is None or self.transport.is_closing():
            return
        self._is_new, self._unread_s = True, unread_s
        self.data_received(data)
        self._is_new, self._unread_s = False, 0.0

    def close_unread(self) -> None:
        """Close once the client has read the response, and closes; soon, if it does not."""
        self._lingering = Lingering(self.transport, self.flow, self.loop)
        self._disconnect_served()
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            self._lingering.drop()
            return
        is_new = self._idle_since_s is not None and self._is_between and not self._field_bytes
        if is_new and self._take_known(data):
            return
        self._is_parsing = True
        self._parse(data)
        if is_new:
            self._keep_head(data)
        self._is_parsing = False
        if self._ready is not None:
            self._begin()

    def _take_known(self, data: bytes) -> bool:
        """Take a whole request, between others, whose head is one that was parsed before."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        head = self.heads.get(data[:end])
        if head is None or len(data) - end != head.content_length:
            return False
        body: Any = data[end:] if len(data) < MAX_JOINED else memoryview(data)[end:]
        request = None
        if self._take_warm is not None:
            request = self._take_warm(self, head, body, self._unread_s)
        if request is None:
            target = self._resolve_target(head.path, head.host)
            if target is None:
                return False
            request = ClientRequest(target, head.headers, self, self._unread_s, head, body)
        self._idle_since_s = None
        self._is_first, self._served = self._served is None, request
        self.cycle = request  # type: ignore[assignment]
        self._start(request)
        return True

    def replace_served(self, request: ClientRequest) -> None:
        if self.cycle is self._served:
            self.cycle = request  # type: ignore[assignment]
        self._served = request

    def _keep_head(self, data: bytes) -> None:
        """Keep the head if `data` was one usual request, to an inference, and nothing else."""
        request, end = self._request, data.find(_HEAD_END) + len(_HEAD_END)
        if request is None or request is not self._ready or not self._is_between:
            return
        if self._refusal is None and request.is_usual:
            self.heads.keep(data[:end], self._path, self._host, request.headers, len(data) - end)

    def _parse(self, data: bytes) -> None:
        while data and self._refusal is None:
            self._field_bytes += len(data)
            try:
                self.parser.feed_data(data)
                if self._field_bytes > MAX_HEAD_BYTES:
                    self._refuse(head_too_long(self._field_bytes))
                return
            except httptools.HttpParserError as error:
                self._refuse(self._invalid(error))
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])

    def _invalid(self, error: httptools.HttpParserError) -> InvalidFraming:
        if isinstance(error.__context__, InvalidFraming):
            return error.__context__
        logger.debug("not HTTP", extra={"error": error})
        return not_http(self.headers, is_in_body=self._is_in_body)

    def _refuse(self, invalid: InvalidFraming) -> None:
        """Respond to invalid bytes, after the requests before them, and read no more."""
        if self.transport.is_closing() or self._lingering is not None:
            return
        self._refusal = invalid.response
        served = self._served
        if self._is_in_body and self.cycle is served:
            if served.response_started:
                self.transport.close()
            else:
                self._send_refusal()
            return
        if self._is_in_body:
            self.pipeline.popleft()  # its body cannot be completed
        if served is None or served.response_complete:
            self._send_refusal()

    def _send_refusal(self) -> None:
        if self._refusal is not None:
            self.transport.write(self._refusal)
            self.close_unread()

    def _without_upgrade(self, rest: bytes) -> bytes:
        if self.parser.get_method() == b"CONNECT":
            self._refuse(InvalidFraming("method CONNECT is not supported"))
            return b""
        head = head_without_upgrade(self.parser, self.url, self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return head + rest

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._is_first = self._served is None
        self._served = cycle
        if isinstance(cycle, RequestResponseCycle):
            super()._start_asgi_task(cycle, DelegatedRequest(app, cycle, self.close_unread))
            return
        self._ready = cycle
        if not self._is_parsing:  # within the response before it
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        request, self._ready = self._ready, None
        if request is not None:
            self._start(request)

    def _start(self, request: Any) -> None:
        """Now, or in its turn."""
        if self._is_new:
            request.start()
        else:
            lane = self._starts.first if self._is_first else self._starts.later
            lane.begin(request, self.loop)

    def on_response_complete(self) -> None:
        """Serve the next pipelined request, if any; else start the idle timer.

        One timer per connection, which checks how long the connection has been idle: uvicorn's
        timer per response costs more.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._lingering is not None:
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal is not None:
            self._send_refusal()
        else:
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
        if self._lingering is not None:
            self._lingering.cancel()
        self._disconnect_served()
        self._end_cycles()

    def _end_cycles(self) -> None:
        """Drop what refers back to this object, so that it is freed at once.

        The garbage collector would free thousands of closed connections late, in long pauses.
        """
        self._request = self._served = self._lingering = None
        self.cycle = None  # type: ignore[assignment]  # as before the first request
        self.pipeline.clear()

    def shutdown(self) -> None:
        served = self._served
        if served is not None and not isinstance(served, RequestResponseCycle):
            served.on_shutdown()
        super().shutdown()

    def _disconnect_served(self) -> None:
        """Tell the running request, if any, that its response can reach nobody."""
        served = self._served
        if served is not None and not served.response_complete:
            served.disconnected = True
            served.message_event.set()
        if served is not None and not isinstance(served, RequestResponseCycle):
            served.connection_lost()


def create_protocol(
    resolve_target: ResolveTarget,
    handle_inference: HandleInference,
    take_warm: TakeWarm | None = None,
) -> Callable[..., GatewayProtocol]:
    """The protocol factory that uvicorn calls for each connection."""
    return partial(
        GatewayProtocol,
        resolve_target,
        handle_inference,
        ConnectionStarts(),
        KnownHeads(),
        take_warm,
    )
