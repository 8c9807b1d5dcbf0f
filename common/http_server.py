"""The server of ASGI applications: uvicorn with common options, and without its signal handlers.

Each process handles signals itself (`common.process.on_stop_signals`), to stop its parts in order:
uvicorn would raise each signal again at its end and so kill the process before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine, Iterator

    from starlette.types import ASGIApp, Receive

    from common.http_headers import Headers

Result = TypeVar("Result")

MAX_PIPELINED: Final = 16
"""Pipelined requests of a connection up to which it is still read."""
BODY_TIMEOUT_S: Final = 0.5
"""Time after `stop` in which bodies in progress may be completed."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's connection with three faults of it mended.

    uvicorn loses the body of a request to upgrade to another protocol, such as `Upgrade: h2c` of
    Java's client; does not notify the running one of pipelined requests that its client has
    disconnected; and waits without limit at shutdown for a body that never arrives.
    """

    running: Any = None
    """uvicorn's cycle of the running request; `cycle` is that of the last one received."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as found:
            self._parse_without_upgrade(data[found.args[0] :])
        # Undo uvicorn's pause: else a disconnect is noticed only after the pipelined requests.
        is_short = self.pipeline and len(self.pipeline) < MAX_PIPELINED
        if is_short and len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def _should_upgrade(self) -> bool:
        """Have uvicorn's callbacks skip a request to upgrade: `data_received` parses it again."""
        return True

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Parse the head of a request again without the header that asks for another protocol."""
        if self.parser.get_method() == b"CONNECT":
            self.send_400_response("Invalid HTTP request received.")
            return
        head = head_without_upgrade(self.parser, self.url, self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(head + rest)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.running = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def connection_lost(self, exc: Exception | None) -> None:
        running = self.running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        cycle = self.running
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            cycle.message_event.set()  # the application may respond without the rest
            self.loop.call_later(BODY_TIMEOUT_S, self._end_without_body, cycle)

    def _end_without_body(self, cycle: Any) -> None:
        if cycle.more_body and not cycle.response_started:
            cycle.disconnected = True
            cycle.message_event.set()
            self.transport.close()


class HttpServer(uvicorn.Server):
    """`serve` returns after `stop`, once requests in progress have ended."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        keep_alive_s: int = 5,
        drain_s: int | None = None,
        **options: Any,
    ) -> None:
        """`host` and `port` (0: a free one) apply if `serve` gets no sockets.

        Idle connections are closed after `keep_alive_s`. Requests that last longer than `drain_s`
        after `stop` are cancelled; None: no limit. `options`: further ones of `uvicorn.Config`.
        """
        fixed: dict[str, Any] = {
            "http": HttpProtocol,
            "ws": "none",
            "lifespan": "off",
            "access_log": False,
            "log_config": None,
            "proxy_headers": False,
            "server_header": False,
            "date_header": False,
            "ssl_context_factory": None if tls is None else lambda *_: tls,
        }
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                timeout_keep_alive=keep_alive_s,
                timeout_graceful_shutdown=drain_s,
                **fixed | options,
            )
        )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop accepting, and let `serve` return; after a second SIGINT it does not wait."""
        self.handle_exit(number, None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs no handlers, see the module's docstring."""
        yield


def head_without_upgrade(parser: Any, target: bytes, headers: Headers) -> bytes:
    """The head that was just parsed without its offer to upgrade (RFC 9110, section 7.8).

    The parser treats the bytes after such a head as another protocol, and later as another
    request, even where they are the request's body.
    """
    method, version = parser.get_method(), parser.get_http_version().encode()
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version)]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
    return b"".join(lines) + b"\r\n"


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of the work; None where the client disconnects before, which ends it."""

    async def wait_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(wait_disconnect())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        del working  # it keeps its error, which would be a cycle
