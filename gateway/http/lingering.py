"""The end of a connection whose client was refused half-way: what it still sends is dropped.

To close with unread bytes resets the connection, and the client may lose the response (RFC 9112,
section 9.6).
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

LINGER_S: Final = 30.0
"""For which bytes of a client whose request was refused half-way are read and dropped, however many
they are: many clients send all of a body before they read. As nginx' `lingering_time`."""
LINGER_PAUSE_S: Final = 5.0
"""Without a byte of it, after which the connection is closed. As nginx' `lingering_timeout`."""


class Lingering:
    """Closes the connection once its client closes; soon, if it does not."""

    def __init__(
        self, transport: asyncio.Transport, flow: FlowControl, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        flow.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        self._dropped_s = loop.time()
        self._end_s = self._dropped_s + LINGER_S
        self._check()

    def _check(self) -> None:
        now_s = self._loop.time()
        rest_s = min(self._end_s, self._dropped_s + LINGER_PAUSE_S) - now_s
        if rest_s <= 0:
            self._transport.close()
        else:
            self._timer = self._loop.call_later(rest_s, self._check)

    def drop(self) -> None:
        """Drop what was read, and read on in the next turn of the loop.

        libuv reads a connection up to 32 times in a turn: eight such clients made others wait for
        0.25 s.
        """
        self._dropped_s = self._loop.time()
        self._flow.pause_reading()
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._flow.resume_reading()

    def cancel(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
