"""The server of ASGI applications: uvicorn with the options of all processes, without its signals.

A process stops all its parts in order, so signals are its own (`common.process.on_stop_signals`):
uvicorn would raise each once more at its end, which kills the process before that.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from starlette.types import ASGIApp

MAX_PIPELINED: Final = 16
"""Requests of a connection that wait for the one before, while it is read on."""
BODY_TIMEOUT_S: Final = 0.5
"""After `stop`, for the rest of bodies that have begun to come."""


class HttpProtocol(HttpToolsProtocol):
    """A connection as uvicorn serves it, but for three faults.

    A request to upgrade to another protocol, such as Java's client sends with `Upgrade: h2c`, lost
    its body. Of pipelined requests the running one was not told that its client is gone. A body
    that never came held the end of the server.
    """

    running: Any = None
    """uvicorn's cycle of the request that runs; `cycle` is that of the last one received."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as found:
            self._go_on_in_http(data[found.args[0] :])
        if self.pipeline and len(self.pipeline) < MAX_PIPELINED:
            self._read_on()

    def _read_on(self) -> None:
        """Uvicorn pauses; a disconnect would be seen only once the pipelined requests have run."""
        if len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def _should_upgrade(self) -> bool:
        """For the parser's callbacks: a request that wants to upgrade is parsed once more."""
        return True

    def _go_on_in_http(self, rest: bytes) -> None:
        """Parse the head of a request again without the header that asks for another protocol."""
        if self.parser.get_method() == b"CONNECT":
            self.send_400_response("Invalid HTTP request received.")
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%s: %s\r\n" % pair for pair in self.headers if pair[0] != b"upgrade"]
        line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"".join([line, *lines, b"\r\n", rest]))

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
            cycle.message_event.set()  # the application may answer without the rest
            self.loop.call_later(BODY_TIMEOUT_S, self._end_without_body, cycle)

    def _end_without_body(self, cycle: Any) -> None:
        if cycle.more_body and not cycle.response_started:
            cycle.disconnected = True
            cycle.message_event.set()
            self.transport.close()


class HttpServer(uvicorn.Server):
    """One server; `serve` returns after `stop`, when requests in progress have ended."""

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
        """Host and port are for `serve` without sockets.

        Args:
            app: the application.
            host: address to listen on.
            port: 0 takes a free one.
            tls: None: plain HTTP.
            keep_alive_s: idle connections are closed after it.
            drain_s: requests that last longer after `stop` are cancelled; None: none is.
            options: more of `uvicorn.Config`.
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
        """Stop accepting, and let `serve` return; a second SIGINT waits for nothing."""
        self.handle_exit(number, None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: see the module."""
        yield
