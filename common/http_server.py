"""The server of ASGI applications: uvicorn with the options of all processes, without its signals.

A process stops all its parts in order, so signals are its own (`common.process.on_stop_signals`):
uvicorn would raise each once more at its end, which kills the process before that.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from starlette.types import ASGIApp


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
