"""A request that uvicorn serves through ASGI; one refused half-way ends as one of inference does.

uvicorn reads such a body to its end, however long it is, or closes the connection with bytes
unread, which resets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    Message = dict[str, Any]
    Send = Callable[[Any], Awaitable[None]]

KEPT_BYTES: Final = 64 << 10
"""A body up to this length is read also where nobody wants it: its connection can be used on."""


class DelegatedRequest:
    """An ASGI application around the gateway's, for one request."""

    def __init__(
        self, app: Any, cycle: RequestResponseCycle, close_unread: Callable[[], None]
    ) -> None:
        """`close_unread` closes the connection once the client has read the response."""
        self._app = app
        self._cycle = cycle
        self._close_unread = close_unread
        self._on_response, cycle.on_response = cycle.on_response, self._end
        self._is_unread = False

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        async def send_and_linger(message: Message) -> None:
            cycle = self._cycle
            if message["type"] == "http.response.start":
                if cycle.more_body and self._is_long(scope):
                    message = closing_connection(message)
            elif cycle.more_body and not cycle.keep_alive and not message.get("more_body"):
                cycle.keep_alive = True  # else it closes the connection at once
                self._is_unread = True
            await send(message)

        await self._app(scope, receive, send_and_linger)

    def _is_long(self, scope: Any) -> bool:
        """The body is, or will not come: its client waits for `100 Continue`."""
        if self._cycle.waiting_for_100_continue:
            return True
        return all(
            name != b"content-length" or int(value) > KEPT_BYTES for name, value in scope["headers"]
        )

    def _end(self) -> None:
        if self._is_unread:
            self._close_unread()
        self._on_response()


def closing_connection(message: Message) -> Message:
    """A response's start, with the header at which uvicorn closes the connection after it."""
    headers = [each for each in message["headers"] if each[0] != b"connection"]
    return {**message, "headers": [*headers, (b"connection", b"close")]}
