"""Events of loggers: what is sent, and that no receiver can hold more than the queue's bounds."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.telemetry import event_log
from gateway.telemetry.event_log import EventLog, EventOutcome, LoggedRequest
from registry.domain.model import LogMode, ModelName, ModelSpec, RequestLog
from tests.gateway.asynchronous import run_async, running

MODEL = ModelName("team", "iris")
HEADERS = [(b"content-type", b"application/json"), (b"x-user", b"ada"), (b"authorization", b"k")]


class Receiver:
    """Takes events on one port; answers with a status, or not at all."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/events"
        finally:
            server.close()
            for writer in self._writers:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                head = dict(line.split(": ", 1) for line in lines[1:] if line)
                self.bodies.append(await reader.readexactly(int(head["content-length"])))
                self.heads.append({"line": lines[0], **head})
                if self.status is not None:
                    writer.write(
                        f"HTTP/1.1 {self.status} x\r\ncontent-length: 2\r\n\r\nok".encode()
                    )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()


class Counts(Counter[EventOutcome]):
    """Counts events, and wakes who waits for a number of them."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def add(self, outcome: EventOutcome) -> None:
        self[outcome] += 1
        self._changed.set()

    async def reach(self, total: int) -> None:
        async with asyncio.timeout(60):
            while self.total() < total:
                self._changed.clear()
                await self._changed.wait()


def _log(*, is_allowed: bool = True) -> tuple[EventLog, Counts]:
    counts = Counts()
    return EventLog(counts.add, lambda *_: is_allowed), counts


def _logged(log: EventLog, settings: RequestLog) -> LoggedRequest | None:
    spec = ModelSpec(MODEL, "file:///iris", logger=settings)
    return log.logged(spec, settings, "id-1", "pod-a", HEADERS)


def _log_one(log: EventLog, settings: RequestLog, body: bytes = b'{"instances": []}') -> None:
    logged = _logged(log, settings)
    assert logged is not None
    logged.request([body], len(body), b"application/json")
    logged.response_part(b'{"predic')
    logged.response_part(b'tions": []}')
    logged.response_end(b"application/json")


@run_async
async def test_an_event_is_as_kserves_agent_sends_it() -> None:
    log, counts = _log()
    receiver = Receiver(200)
    async with receiver.serving() as url, running(log.run):
        _log_one(log, RequestLog(url, headers=("x-user",)))
        await counts.reach(2)
    assert counts == {EventOutcome.SENT: 2}
    by_type = {head["ce-type"]: head for head in receiver.heads}
    head = by_type["org.kubeflow.serving.inference.request"]
    assert by_type.keys() == {event_log.REQUEST, event_log.RESPONSE}
    assert head["line"] == "POST /events HTTP/1.1"
    assert (head["ce-specversion"], head["ce-id"], head["ce-source"]) == ("1.0", "id-1", "pod-a")
    assert (head["ce-inferenceservicename"], head["ce-namespace"]) == ("iris", "team")
    assert (head["ce-component"], head["ce-endpoint"]) == ("predictor", "default")
    assert head["ce-metadata"] == '{"x-user": ["ada"]}'
    assert head["content-type"] == "application/json"
    assert sorted(receiver.bodies) == [b'{"instances": []}', b'{"predictions": []}']


@pytest.mark.parametrize(
    ("mode", "types"),
    [(LogMode.REQUEST, [event_log.REQUEST]), (LogMode.RESPONSE, [event_log.RESPONSE])],
)
def test_a_mode_sends_one_kind(mode: LogMode, types: list[str]) -> None:
    @run_async
    async def send() -> None:
        log, counts = _log()
        receiver = Receiver(202)
        async with receiver.serving() as url, running(log.run):
            _log_one(log, RequestLog(url, mode))
            await counts.reach(1)
        assert [head["ce-type"] for head in receiver.heads] == types

    send()


@run_async
async def test_connections_are_used_again_also_after_the_receiver_restarts() -> None:
    log, counts = _log()
    receiver = Receiver(200)
    async with receiver.serving() as url, running(log.run):
        for total in range(1, 6):
            _log_one(log, RequestLog(url, LogMode.REQUEST))
            await counts.reach(total)
        assert receiver.connections == 1
    assert counts == {EventOutcome.SENT: 5}


@pytest.mark.parametrize("status", [301, 404, 500])
def test_events_that_are_not_taken_are_counted(status: int) -> None:
    @run_async
    async def send() -> None:
        log, counts = _log()
        async with Receiver(status).serving() as url, running(log.run):
            _log_one(log, RequestLog(url, LogMode.REQUEST))
            await counts.reach(1)
        assert counts == {EventOutcome.FAILED: 1}

    send()


@run_async
async def test_a_receiver_that_is_gone_costs_its_events() -> None:
    log, counts = _log()
    async with Receiver(200).serving() as url:
        pass
    async with running(log.run):
        _log_one(log, RequestLog(url))
        await counts.reach(2)
    assert counts == {EventOutcome.FAILED: 2}


@run_async
async def test_a_receiver_that_hangs_fills_the_queue_and_no_more() -> None:
    log, counts = _log()
    receiver = Receiver(None)
    async with receiver.serving() as url, running(log.run):
        for _ in range(event_log.MAX_EVENTS + 50):
            _log_one(log, RequestLog(url, LogMode.REQUEST))
        assert counts == {EventOutcome.QUEUE_FULL: 50}
        large = b"x" * event_log.MAX_EVENT_BYTES
        _log_one(log, RequestLog(url, LogMode.REQUEST), large)
    assert counts == {EventOutcome.QUEUE_FULL: 51}


@run_async
async def test_the_queue_is_bounded_in_bytes() -> None:
    log, counts = _log()
    body = b"x" * event_log.MAX_EVENT_BYTES
    for _ in range(event_log.MAX_QUEUED_BYTES // event_log.MAX_EVENT_BYTES + 1):
        _log_one(log, RequestLog("http://127.0.0.1:1/", LogMode.REQUEST), body)
    assert counts == {EventOutcome.QUEUE_FULL: 1}


@run_async
async def test_large_bodies_are_not_logged() -> None:
    log, counts = _log()
    logged = _logged(log, RequestLog("http://127.0.0.1:1/"))
    assert logged is not None
    logged.request([b"begin"], 2 << 20, b"")  # the rest is in a file
    for _ in range(3):
        logged.response_part(b"x" * (1 << 19))
    logged.response_end(b"")
    assert counts == {EventOutcome.TOO_LARGE: 2}


@run_async
async def test_urls_that_the_operator_does_not_allow_get_nothing() -> None:
    log, counts = _log(is_allowed=False)
    assert _logged(log, RequestLog("http://169.254.169.254/")) is None
    assert counts == {EventOutcome.FORBIDDEN: 1}
