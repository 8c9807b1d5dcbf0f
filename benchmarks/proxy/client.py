"""Load generator for machines without wrk: keep-alive connections in a closed loop.

`python -m benchmarks.proxy.client URL BODY_FILE CLIENTS SECONDS` prints one line of JSON.
"""

import asyncio
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop

from benchmarks.quantiles import quantile


class _Client(asyncio.Protocol):
    """One connection that sends the next request as soon as it has a response."""

    def __init__(self, request: bytes, counts: "_Counts") -> None:
        self._request = request
        self._counts = counts
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sent_s = 0.0
        self._is_served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._send()

    def _send(self) -> None:
        if self._transport is not None:
            self._sent_s = time.perf_counter()
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Count the response; send the next request on the same connection."""
        now_s = time.perf_counter()
        self._is_served = True
        self._counts.latencies_s.append(now_s - self._sent_s)
        if self._parser.get_status_code() >= 400:
            self._counts.errors += 1
        self._parser = httptools.HttpResponseParser(self)
        if now_s < self._counts.until_s:
            self._send()

    def count_unserved(self) -> None:
        """Without any response so far, count the time waited."""
        if not self._is_served:
            self._counts.unserved += 1
            self._counts.latencies_s.append(time.perf_counter() - self._sent_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a connection that is closed early as an error."""
        if time.perf_counter() < self._counts.until_s:
            self._counts.errors += 1


class _Counts:
    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.latencies_s: list[float] = []
        self.errors = 0
        self.unserved = 0


async def drive(url: str, body: bytes, clients: int, seconds: float) -> bytes:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    head = (
        f"POST {parts.path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    began_s = time.perf_counter()
    counts = _Counts(began_s + seconds)
    loop = asyncio.get_running_loop()
    request = head.encode() + body
    connections = [
        await loop.create_connection(lambda: _Client(request, counts), host, port)
        for _ in range(clients)
    ]
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - began_s
    served = len(counts.latencies_s)
    for transport, client in connections:
        client.count_unserved()
        transport.abort()
    latencies_ms = [latency_s * 1000 for latency_s in counts.latencies_s] or [0.0]
    return orjson.dumps(
        {
            "requests": served,
            "seconds": took_s,
            "errors": counts.errors,
            "unserved": counts.unserved,
            "p50_ms": quantile(latencies_ms, 0.5),
            "p95_ms": quantile(latencies_ms, 0.95),
            "p99_ms": quantile(latencies_ms, 0.99),
            "longest_ms": max(latencies_ms),
        }
    )


def main() -> None:
    url, body_file, clients, seconds = sys.argv[1:]
    body = Path(body_file).read_bytes()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(drive(url, body, int(clients), float(seconds)))
    print(f"RESULT {result.decode()}")


if __name__ == "__main__":
    main()
