"""Refuses HTTP requests to a pod that do not carry the shared secret, before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from registry.pod_secret import HEADER
from runtime.errors import Unauthorized
from runtime.protocols.response import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from registry.pod_secret import PodSecret

OPEN_PATHS: Final = frozenset({"/", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""For the kubelet's probes and for Prometheus, which have no secret."""
OPEN_METHODS: Final = frozenset({"GET", "HEAD"})
REFUSAL: Final = (
    f"pods accept requests of their gateway and autoscaler only: the header {HEADER} must have a"
    " secret of --pod-secret-file; send requests to the gateway"
)
_HEADER: Final = HEADER.encode()


class SecretCheck:
    """An ASGI application around the pod's."""

    def __init__(self, app: ASGIApp, secret: PodSecret) -> None:
        self._app = app
        self._secret = secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        status, body, headers = error_response(Unauthorized(REFUSAL))
        raw = [(name.encode(), value.encode()) for name, value in headers]
        raw.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    def _is_allowed(self, scope: Scope) -> bool:
        given = None
        for name, value in scope["headers"]:
            if name == _HEADER:
                given = value
                break
        if given is not None and self._secret.accepts(given):
            return True
        return scope["path"] in OPEN_PATHS and scope["method"] in OPEN_METHODS
