"""HTTP/1.1 of the fake pods: requests with their test options, responses, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol


@dataclass
class FakePodRequest:
    """One request with its body and the options of its `x-test` header."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    options: dict[str, str] = field(default_factory=dict)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first `release` command after the request's arrival."""

    def option(self, name: str, pod: str) -> str:
        """An option's value for this pod; `at=POD` restricts all options to that pod."""
        if self.options.get("at", pod) != pod:
            return ""
        return self.options.get(name, "")


class Disconnect(Exception):
    """Close the connection now."""


class RequestHandler(Protocol):
    """A pod, as its server uses it."""

    name: str
    counts: dict[str, int]

    async def control(self, request: FakePodRequest) -> dict[str, object]: ...

    async def infer(self, request: FakePodRequest, response: ResponseWriter) -> None: ...


def header_lines(headers: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"


def parse_headers(head: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:] if line)
    return {name.lower(): value.strip() for name, _, value in pairs}


class ResponseWriter:
    """Writes one response."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + header_lines(headers)

    async def complete(self, status: int, headers: dict[str, str], body: bytes) -> None:
        head = self._head(status, {**headers, "content-length": str(len(body))})
        self._writer.write(head + body)
        await self._writer.drain()

    async def refuse(self, status: int, refusal: str) -> None:
        headers = {"x-pilotlight-not-executed": refusal}
        await self.complete(status, headers, b'{"error": "not executed"}')

    async def stream(
        self, status: int, headers: dict[str, str], chunks: AsyncIterator[bytes]
    ) -> None:
        self._writer.write(self._head(status, {**headers, "transfer-encoding": "chunked"}))
        async for chunk in chunks:
            self._writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await self._writer.drain()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def until_close(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._writer.write(self._head(status, {**headers, "connection": "close"}) + body)
        await self._writer.drain()
        raise Disconnect

    async def truncated(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Declare a longer body than is sent, then close."""
        head = self._head(status, {**headers, "content-length": str(len(body) + 10)})
        self._writer.write(head + body)
        await self._writer.drain()
        raise Disconnect


class FakePodServer:
    """One pod's HTTP server."""

    def __init__(self, pod: RequestHandler) -> None:
        self._pod = pod

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pod.counts["connections"] += 1
        with contextlib.suppress(
            asyncio.IncompleteReadError, ConnectionError, Disconnect, asyncio.CancelledError
        ):
            is_reused = False
            while True:
                await self._serve_request(reader, writer, is_reused=is_reused)
                is_reused = True
        writer.close()

    async def _serve_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reused: bool
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        request = FakePodRequest(method, path, parse_headers(head))
        options = request.headers.get("x-test", "")
        request.options = dict(option.split("=", 1) for option in options.split(",") if option)
        response = ResponseWriter(writer)
        if is_reused and request.option("close", self._pod.name) == "reused":
            raise Disconnect
        if early := request.option("early", self._pod.name):
            await response.complete(int(early), {"connection": "close"}, b'{"error": "early"}')
            writer.write_eof()
            while await reader.read(1 << 16):
                pass  # closing with unread bytes would discard the response
            raise Disconnect
        try:
            request.body = await self._body(reader, request)
        except asyncio.IncompleteReadError:
            self._pod.counts["disconnected"] += 1
            raise
        self._pod.counts["body_bytes"] += len(request.body)
        if path.startswith("/control/"):
            await response.complete(200, {}, json.dumps(await self._pod.control(request)).encode())
            return
        await self._run_until_disconnect(reader, self._pod.infer(request, response))

    async def _run_until_disconnect(
        self, reader: asyncio.StreamReader, work: Coroutine[object, object, None]
    ) -> None:
        """Stop the work when the client closes its connection."""
        task = asyncio.ensure_future(work)
        disconnect = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if disconnect.done() and not task.done():
                self._pod.counts["disconnected"] += 1
                raise Disconnect
            await task
        finally:
            for each in (task, disconnect):
                each.cancel()
            await asyncio.wait({task, disconnect})
            for each in (task, disconnect):
                if not each.cancelled():
                    each.exception()

    async def _body(self, reader: asyncio.StreamReader, request: FakePodRequest) -> bytes:
        if request.headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(await reader.readuntil(b"\r\n"), 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
            return b"".join(parts)
        return await reader.readexactly(int(request.headers.get("content-length", "0")))
