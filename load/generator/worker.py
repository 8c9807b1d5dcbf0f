"""One process of the generator: sends its share of the trace, writes records, reports progress.

`python -m load.generator.worker` reads lines from standard input: its configuration (JSON), then
`go SECONDS` (the run's start by the monotonic clock, which all processes share). `stop`, or the end
of the input when the parent process has ended, ends the run; the records so far are kept.
"""

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import uvloop
from pydantic import TypeAdapter

from load.generator.http_sender import HttpSender
from load.generator.open_loop import OpenLoop, Sender
from load.generator.progress import SendCounts
from load.generator.record_parts import RecordPart
from load.generator.settings import RequestProtocol, RunSettings
from load.generator.target_url import parse_url
from load.generator.trace_arrivals import worker_share
from load.trace_spec.trace_spec import open_trace

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

    sender = _sender(settings, now_s)
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


def _sender(settings: RunSettings, now_s: Callable[[], float]) -> Sender:
    is_grpc = settings.protocol is RequestProtocol.GRPC
    target = parse_url(settings.url, is_grpc=is_grpc)
    if is_grpc:
        from load.generator.grpc_sender import GrpcSender  # takes seconds to import

        return GrpcSender(settings, target, now_s)
    return HttpSender(settings, target, now_s)


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
