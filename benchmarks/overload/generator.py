"""Open-loop load of several tenants on a gateway, or closed-loop load: a process of its own.

`python -m benchmarks.overload.generator PORT` reads a `Load` as JSON from standard input and writes
`Sent` per stream. Requests are sent at the times of a Poisson process whatever the responses are;
latencies count from those times.
"""

import asyncio
import random
import sys
import time
from dataclasses import asdict, dataclass, field

import orjson
import uvloop

BODY = b'{"instances": [[0.5, 1.0, -1.0, 2.0]]}'


@dataclass(frozen=True, slots=True)
class Stream:
    """One tenant's requests."""

    path: str
    rate: float
    """Requests per second; of a closed loop the number of clients."""
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    streams: tuple[Stream, ...]
    seconds: float
    warm_up_s: float
    """Requests that are due before, or responses before, do not count."""
    seed: int
    is_closed: bool = False


@dataclass(slots=True)
class Sent:
    """What became of one stream's requests after the warm-up."""

    due: int = 0
    latencies_s: list[float] = field(default_factory=list)
    """Of responses 200 within the deadline, of requests that were due after the warm-up."""
    good: int = 0
    """Such responses that came after the warm-up and before the end."""
    late: int = 0
    """Responses 200 after the deadline."""
    statuses: dict[str, int] = field(default_factory=dict)
    lateness_s: list[float] = field(default_factory=list)
    """How much later than due every request was sent."""


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport
    received = b""
    response: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) >= length and self.response is not None and not self.response.done():
            self.received = b""
            self.response.set_result(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.response is not None and not self.response.done():
            self.response.set_result(0)


class _Generator:
    def __init__(self, port: int, load: Load) -> None:
        self._port = port
        self._load = load
        self._idle: list[_Connection] = []
        self._loop = asyncio.get_running_loop()
        self._began_s = time.monotonic()

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self) -> list[Sent]:
        sent = [Sent() for _ in self._load.streams]
        tasks = [
            self._loop.create_task(self._clients(number, stream, sent[number]))
            for number, stream in enumerate(self._load.streams)
        ]
        await asyncio.sleep(self._load.seconds - self._now_s())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return sent

    async def _clients(self, number: int, stream: Stream, sent: Sent) -> None:
        async with asyncio.TaskGroup() as group:
            if self._load.is_closed:
                for _ in range(int(stream.rate)):
                    group.create_task(self._repeat(stream, sent))
                return
            draws = random.Random(self._load.seed * 1000 + number)
            due_s = draws.expovariate(stream.rate)
            while True:
                early_s = due_s - self._now_s()
                if early_s > 0:
                    await asyncio.sleep(early_s)
                group.create_task(self._send(stream, sent, due_s))
                due_s += draws.expovariate(stream.rate)

    async def _repeat(self, stream: Stream, sent: Sent) -> None:
        while True:
            await self._send(stream, sent, self._now_s())

    async def _send(self, stream: Stream, sent: Sent, due_s: float) -> None:
        is_counted = due_s >= self._load.warm_up_s
        sent.due += is_counted
        connection = self._idle.pop() if self._idle else await self._connect()
        connection.response = self._loop.create_future()
        deadline = b""
        if stream.deadline_ms:
            deadline = b"x-pilotlight-deadline-ms: %d\r\n" % stream.deadline_ms
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n"
        try:
            connection.transport.write(head % (stream.path.encode(), deadline, len(BODY)) + BODY)
            sent.lateness_s.append(self._now_s() - due_s)
            status = await connection.response
        except asyncio.CancelledError:
            connection.transport.abort()
            raise
        if not connection.transport.is_closing():
            self._idle.append(connection)
        self._count(stream, sent, status, due_s, is_counted=is_counted)

    def _count(
        self, stream: Stream, sent: Sent, status: int, due_s: float, *, is_counted: bool
    ) -> None:
        now_s = self._now_s()
        if now_s < self._load.warm_up_s:
            return
        sent.statuses[str(status)] = sent.statuses.get(str(status), 0) + 1
        if status != 200:
            return
        if stream.deadline_ms and (now_s - due_s) * 1000 > stream.deadline_ms:
            sent.late += 1
            return
        sent.good += 1
        if is_counted:
            sent.latencies_s.append(now_s - due_s)

    async def _connect(self) -> _Connection:
        _, connection = await self._loop.create_connection(_Connection, "127.0.0.1", self._port)
        return connection


async def _main(port: int, load: Load) -> None:
    found = await _Generator(port, load).run()
    sys.stdout.buffer.write(orjson.dumps([asdict(each) for each in found]))


def main() -> None:
    given = orjson.loads(sys.stdin.buffer.read())
    streams = tuple(Stream(**each) for each in given.pop("streams"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(int(sys.argv[1]), Load(streams=streams, **given)))


if __name__ == "__main__":
    main()
