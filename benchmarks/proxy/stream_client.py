"""Concurrent streams of events: `python -m benchmarks.proxy.stream_client URL BODY_FILE STREAMS`.

Each connection sends one request and reads to its end. Prints one line of JSON: streams that ended
as they should, events, seconds, and the latest of the times to the first event.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events, self.first_s = 0, 0.0
        self.is_right = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sent_s = time.perf_counter()
        cast("asyncio.Transport", transport).write(self._request)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if not self.events:
            self.first_s = time.perf_counter() - self._sent_s
        self.events += body.count(b"data: {")

    def on_message_complete(self) -> None:
        self.is_right = self._parser.get_status_code() == 200
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _run(url: str, body: bytes, streams: int) -> None:
    address = urlsplit(url)
    head = (
        f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    host, port = str(address.hostname), int(address.port or 80)
    loop, began_s = asyncio.get_running_loop(), time.perf_counter()
    made = [
        loop.create_connection(lambda: _Stream(head.encode() + body), host, port)
        for _ in range(streams)
    ]
    connected = [stream for _, stream in await asyncio.gather(*made)]
    await asyncio.gather(*(stream.ended for stream in connected))
    found = {
        "right": sum(stream.is_right for stream in connected),
        "events": sum(stream.events for stream in connected),
        "seconds": time.perf_counter() - began_s,
        "first_ms": 1000 * max(stream.first_s for stream in connected),
    }
    print("RESULT", orjson.dumps(found).decode())


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3])))
