"""A server whose responses are normal, odd or missing, by the model of the request."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def _response(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


_EVENTS = "content-type: text/event-stream"
_RESPONSES = {
    "plain": _PLAIN,
    "hold": _PLAIN,
    "together": _PLAIN,
    "busy": _response("503 Busy", b'{"error": "no room"}', "x-pilotlight-reason: full"),
    "wrong": _response("400 Bad Request", b"<p>not JSON"),
    "half-locked": _response("401 Unauthorized", b'{"error": "an API key is needed"}'),
    "openai-wrong": _response("404 Not Found", b'{"error": {"message": "no such model"}}'),
    "odd-headers": _response(
        "200 OK",
        b"{}",
        "server-timing: infer;dur=x, load;dur=nan, queue;dur=1.5, db;dur=9",
        "x-pilotlight-start: \xff",
    ),
    "truncated": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}",
    "garbage": b"this is no HTTP\r\n\r\n",
    "closed": b"",
    "stream": _response("200 OK", b'data: {"a": 1}\n\ndata: [DONE]\n\n', _EVENTS),
    "stream-usage": _response(
        "200 OK",
        b'data: {"choices": [{}], "usage": null}\n\n'
        b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n',
        _EVENTS,
    ),
    "stream-broken": _response("200 OK", b'data: {"a": 1}\n\n', _EVENTS),
    "stream-error": _response("200 OK", b'data: {"error": {"message": "too slow"}}\n\n', _EVENTS),
}
_METADATA = {
    "absent": _response("404 Not Found", b'{"error": "no metadata"}'),
    "bare": _response("200 OK", b'{"name": "bare", "inputs": [], "outputs": []}'),
    "locked": _response("401 Unauthorized", b'{"error": "an API key is needed"}'),
}
_CLOSING = {"truncated", "garbage", "closed"}


@dataclass
class OddServer:
    """A running server; its counters may be read from the test's thread."""

    together: int = 0
    """How many requests for `together` must arrive before any gets a response."""
    port: int = 0
    requests: list[str] = field(default_factory=list)
    """The first line of each inference request."""
    bodies: list[bytes] = field(default_factory=list)
    """Its body."""
    credentials: set[str] = field(default_factory=set)
    """Authorization headers of all requests; empty: without one."""
    hosts: set[tuple[str, str]] = field(default_factory=set)
    """Method and Host header of all requests."""

    def requests_for(self, model: str) -> int:
        """How many V1 requests named the model."""
        return sum(f"/{model}:" in each for each in self.requests)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __post_init__(self) -> None:
        self._all_arrived: asyncio.Event | None = None
        self._never: asyncio.Event | None = None  # the only reference to its waiters

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        self._all_arrived, self._never = asyncio.Event(), asyncio.Event()
        server = await asyncio.start_server(self._serve_connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False when the connection is over."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        self.credentials.add(headers.get("authorization", ""))
        self.hosts.add((first.partition(" ")[0], headers["host"]))
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if first.startswith("GET"):
            model = first.split()[1].rpartition("/")[2]
            writer.write(_METADATA.get(model) or _METADATA["absent"])
            return True
        self.requests.append(first)
        self.bodies.append(body)
        model = next(
            (
                m
                for m in sorted(_RESPONSES, key=len, reverse=True)
                if f"/{m}:" in first or f'"{m}"'.encode() in body
            ),
            "plain",
        )
        return await self._respond(model, writer)

    async def _respond(self, model: str, writer: asyncio.StreamWriter) -> bool:
        if model == "hold":
            assert self._never is not None
            await self._never.wait()
        if model == "together":
            assert self._all_arrived is not None
            if self.requests_for("together") >= self.together:
                self._all_arrived.set()
            await self._all_arrived.wait()
        writer.write(_RESPONSES[model])
        if model == "closed":
            _reset_on_close(writer)
        return model not in _CLOSING


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of an end."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def odd_server(together: int = 0) -> Iterator[OddServer]:
    """Run the server in a thread of this process."""
    server = OddServer(together)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with contextlib.closing(loop):
            loop.run_until_complete(server.serve(ready, stop))
            loop.run_until_complete(asyncio.sleep(0))
            while tasks := asyncio.all_tasks(loop):  # includes connections accepted last
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
