"""What is sent to a client that is gone is dropped, as uvicorn does once it knows that.

uvloop closes a connection a turn of the loop before it tells uvicorn's protocol; a response that is
written between fails, which would be logged as an error of the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class GoneClients:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_if_open(message: Message) -> None:
            try:
                await send(message)
            except RuntimeError as error:
                if "the handler is closed" not in str(error):
                    raise

        await self._app(scope, receive, send_if_open)
