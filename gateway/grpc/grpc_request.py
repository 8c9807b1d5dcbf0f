"""One inference call over gRPC, as the application serves a client's request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.http.headers import Headers
    from gateway.http.routes import ModelTarget


class GrpcRequest:
    """An `InferenceClient`: its body is the call's message, its response is collected."""

    def __init__(self, target: ModelTarget, headers: Headers, content: bytes) -> None:
        self.target = target
        self.headers = headers
        self.loop = asyncio.get_running_loop()
        self.waited_s = 0.0
        self.keep_alive = True
        self.disconnected = False
        self.response_started = False
        self.is_complete = True
        self.on_disconnect: Callable[[], None] | None = None
        self.status = 0
        """The response's HTTP status; 0 without a response, or with a part of one."""
        self.metadata: Headers = []
        """The response's headers."""
        self._content = [content]
        self._status = 0
        self._parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The response's body."""
        return b"".join(self._parts)

    @property
    def error(self) -> str:
        """The message of an error response."""
        try:
            return str(orjson.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError):
            return f"the response had status {self.status}"

    def disconnect(self) -> None:
        """End the request: its client has cancelled the call, or its deadline passed."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()

    # As an `InferenceClient`

    def take_chunks(self) -> list[bytes]:
        chunks, self._content = self._content, []
        return chunks

    async def receive_chunks(self) -> list[bytes]:
        return self.take_chunks()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.response_started = True
        self.metadata = headers
        self._parts = [body]
        self.status = status

    def start_response(self, status: int, lines: list[bytes], *, has_length: bool) -> None:
        self.response_started = True
        self._status = status
        for line in b"".join(lines).split(b"\r\n"):
            name, found, value = line.partition(b": ")
            if found:
                self.metadata.append((name, value))

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        self._parts.append(body)
        if is_last:
            self.status = self._status

    async def drain(self, timeout_s: float) -> None:
        """Return at once: the whole response is kept until it is sent as one message."""

    def abort_response(self) -> None:
        self.disconnected = True
