"""Routes whose endpoints are ASGI applications are called without the framework's middleware.

They send the response to every error themselves, so it would only cost time: five layers and a
search through all routes take seven times as long as this (docs/runtime.md, CPU time of a request).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send


class DirectRoutes:
    """An ASGI application around the pod's."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        """Routes in order; all that match none of those with ASGI endpoints goes to `app`."""
        self._app = app
        self._routes = [route for route in routes if route.app is route.endpoint]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send)
                return
        await self._app(scope, receive, send)
