"""One process of the generator: sends its share of the trace, writes records, reports progress.

`python -m load.generator.worker` reads lines from standard input: its configuration (JSON), then
`go SECONDS` (the run's start by the monotonic clock, which all processes share). `stop`, or the end
of the input when the parent process has ended, ends the run; the records so far are kept.
"""

import asyncio
import gc
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
import uvloop
from pydantic import TypeAdapter

from load.generator.http_sender import HttpSender
from load.generator.records import RecordPart, RequestResult, record_row
from load.generator.settings import LATE_S, TEXT, Content, RunSettings, SendCounts
from load.generator.target import parse_url
from load.generator.trace_arrivals import TraceArrival, worker_share
from load.trace_spec import open_trace


class Sender(Protocol):
    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, result: RequestResult
    ) -> None:
        """Fill in the result; raises nothing but cancellation."""

    async def close(self) -> None: ...


@dataclass(slots=True)
class OpenLoop:
    """Sends one worker's share of a trace, each request at its time, regardless of responses.

    A request that is late is sent at once; its `sent_s` shows it. Latency counts from the scheduled
    time, so that a generator that falls behind shows high latency instead of hiding it.
    """

    settings: RunSettings
    sender: Sender
    records: RecordPart
    now_s: Callable[[], float]
    """Seconds since the run's start."""
    max_in_flight: int
    counts: SendCounts = field(default_factory=SendCounts)

    async def run(self, chunks: Iterator[list[TraceArrival]]) -> None:
        """Send every request at its time; returns when all have a result."""
        async with asyncio.TaskGroup() as requests:
            upcoming = await asyncio.to_thread(next, chunks, None)
            while upcoming:
                async with asyncio.TaskGroup() as reading:
                    following = reading.create_task(asyncio.to_thread(next, chunks, None))
                    for arrival in upcoming:
                        await self._wait_until(arrival.at_s)
                        self._start(requests, arrival)
                upcoming = following.result()

    async def _wait_until(self, at_s: float) -> None:
        while (early_s := at_s - self.now_s()) > 0:  # noqa: ASYNC110 - waits for a time
            await asyncio.sleep(math.ceil(early_s * 1000) / 1000)  # shorter, uvloop spins
        if self.counts.due % 64 == 0:
            await asyncio.sleep(0)  # lets responses be read when the loop is behind

    def _start(self, requests: asyncio.TaskGroup, arrival: TraceArrival) -> None:
        self.counts.due += 1
        if self.counts.in_flight >= self.max_in_flight:
            error = (
                f"not sent: {self.max_in_flight} requests of this process were in flight; "
                "raise --max-in-flight or lower the load"
            )
            self._record(arrival, RequestResult(error=error))
            return
        self.counts.in_flight += 1
        payloads = self.settings.payloads
        content = payloads.get(f"{arrival.tenant}/{arrival.model}") or payloads.get(arrival.model)
        requests.create_task(self._send(arrival, content or TEXT))

    async def _send(self, arrival: TraceArrival, content: Content) -> None:
        result = RequestResult()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await self.sender.send(arrival, content, self._request_id(arrival), result)
        except TimeoutError:
            result.status = 0
            result.error = f"no complete response within --timeout {self.settings.timeout_s:g} s"
        except asyncio.CancelledError:
            result.status, result.finished_s = 0, None
            result.error = "the run was interrupted before the response"
            raise
        finally:
            self.counts.in_flight -= 1
            self._record(arrival, result)

    def _record(self, arrival: TraceArrival, result: RequestResult) -> None:
        counts = self.counts
        counts.done += 1
        counts.by_status[result.status] += 1
        if result.sent_s is not None and result.sent_s - arrival.at_s > LATE_S:
            counts.late += 1
        if result.finished_s is not None and result.error is None:
            counts.latencies.observe(result.finished_s - arrival.at_s)
        request_id = self._request_id(arrival)
        row = record_row(arrival, result, request_id=request_id, policy=self.settings.policy)
        self.records.add(row)

    def _request_id(self, arrival: TraceArrival) -> str:
        return f"{self.settings.seed}-{arrival.row}"


_REPORT_INTERVAL_S: Final = 0.25
_GC_THRESHOLD: Final = 50_000


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    settings: RunSettings
    worker: int
    part: str
    """Path of its records."""

    def to_json(self) -> bytes:
        """One line for standard input."""
        return TypeAdapter(WorkerConfig).dump_json(self)


def main() -> None:
    """Run one worker; its exit status is 0 also when it was stopped."""
    pa.array([""])  # makes pyarrow search for pandas now, which takes seconds, not during the run
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    gc.set_threshold(_GC_THRESHOLD)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main())


async def _main() -> None:
    commands = await _standard_input()
    config = TypeAdapter(WorkerConfig).validate_json(await commands.readline())
    has_answers = any(each.examples is not None for each in config.settings.payloads.values())
    records = RecordPart(Path(config.part), has_answers=has_answers)
    try:
        await _run(config, records, commands)
    finally:
        records.close()


async def _run(config: WorkerConfig, records: RecordPart, commands: asyncio.StreamReader) -> None:
    settings = config.settings
    start_s = 0.0

    def now_s() -> float:
        return time.monotonic() - start_s

    sender = HttpSender(settings, parse_url(settings.url), now_s)
    max_in_flight = settings.worker_max_in_flight(config.worker)
    loop = OpenLoop(settings, sender, records, now_s, max_in_flight)
    chunks = worker_share(
        open_trace(settings.trace, seed=settings.seed),
        worker=config.worker,
        workers=settings.processes,
        duration_s=settings.duration_s,
    )
    gc.freeze()
    _report({"ready": True})
    command = (await commands.readline()).decode().split()
    if command[:1] != ["go"]:
        return
    start_s = float(command[1])
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(loop.run(chunks))
        background = [
            group.create_task(_report_progress(loop.counts, records)),
            group.create_task(_cancel_on_command(commands, sending)),
        ]
        await asyncio.wait([sending])
        for task in background:
            task.cancel()
    await sender.close()
    _report(loop.counts)


async def _cancel_on_command(commands: asyncio.StreamReader, sending: asyncio.Task[None]) -> None:
    """Cancel the run at the next line or the end of the input."""
    await commands.readline()
    sending.cancel()


async def _report_progress(counts: SendCounts, records: RecordPart) -> None:
    """Report progress and flush records, until cancelled."""
    while True:
        await asyncio.sleep(_REPORT_INTERVAL_S)
        records.flush()
        _report(counts)


def _report(report: dict[str, Any] | SendCounts) -> None:
    with suppress(BrokenPipeError):  # the parent has ended; so does the input
        line = orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
        sys.stdout.buffer.write(line)
        sys.stdout.flush()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    main()
