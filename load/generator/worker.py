"""One process of the generator: plays its share of the trace, writes its records, tells progress.

`python -m load.generator.worker` reads its orders from standard input, a line each: what to do
(JSON), then `go SECONDS` (the run's start by the monotonic clock that all processes share). `stop`,
or the end of the input, which is the end of whoever started it, ends the run with what it has.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import uvloop

from load.generator.arrivals import share
from load.generator.http_sender import HttpSender
from load.generator.pacing import Player
from load.generator.record_parts import RecordPart
from load.generator.settings import RequestProtocol, RunSettings
from load.generator.target_url import parse_url
from load.trace_spec.trace_spec import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from load.generator.pacing import SendCounts

_TELL_S: Final = 0.25
_GC_THRESHOLD: Final = 50_000


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What one worker is to do."""

    settings: RunSettings
    worker: int
    part: Path

    def to_json(self) -> str:
        """One line for standard input."""
        fields = {"settings": self.settings.to_json(), "worker": self.worker}
        return json.dumps({**fields, "part": str(self.part)})

    @classmethod
    def from_json(cls, line: str) -> WorkerConfig:
        """What `to_json` wrote."""
        fields = json.loads(line)
        settings = RunSettings.from_json(fields["settings"])
        return cls(settings, fields["worker"], Path(fields["part"]))


def main() -> None:
    """Run one worker; its status is 0 also when it was stopped."""
    pa.array([""])  # makes pyarrow look for pandas now, which is seconds, not during the run
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.set_threshold(_GC_THRESHOLD)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work())


async def _work() -> None:
    commands = await _standard_input()
    orders = WorkerConfig.from_json((await commands.readline()).decode())
    records = RecordPart(orders.part)
    try:
        await _play(orders, records, commands)
    finally:
        records.close()


async def _play(orders: WorkerConfig, records: RecordPart, commands: asyncio.StreamReader) -> None:
    settings = orders.settings
    start_s = 0.0

    def now_s() -> float:
        return time.monotonic() - start_s

    sender = _sender(settings, now_s)
    player = Player(settings, sender, records, now_s, settings.most_in_flight_of(orders.worker))
    chunks = share(
        open_trace(settings.trace, seed=settings.seed),
        worker=orders.worker,
        workers=settings.processes,
        duration_s=settings.duration_s,
    )
    gc.freeze()
    _tell({"ready": True})
    order = (await commands.readline()).decode().split()
    if order[:1] != ["go"]:
        return
    start_s = float(order[1])
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(player.play(chunks))
        asides = [
            group.create_task(_tell_on(player.tally, records)),
            group.create_task(_stop_on_order(commands, playing)),
        ]
        await asyncio.wait([playing])
        for task in asides:
            task.cancel()
    await sender.close()
    _tell(_progress(player.tally))


def _sender(settings: RunSettings, now_s: Callable[[], float]) -> Any:
    is_grpc = settings.protocol is RequestProtocol.GRPC
    origin = parse_url(settings.url, is_grpc=is_grpc)
    if is_grpc:
        from load.generator.grpc_sender import GrpcSender  # seconds to import

        return GrpcSender(settings, origin, now_s)
    return HttpSender(settings, origin, now_s)


async def _stop_on_order(commands: asyncio.StreamReader, playing: asyncio.Task[None]) -> None:
    """Whatever comes now, or the end of the input, means stop."""
    await commands.readline()
    playing.cancel()


async def _tell_on(tally: SendCounts, records: RecordPart) -> None:
    """Tell progress and write what is there, until cancelled."""
    while True:
        await asyncio.sleep(_TELL_S)
        records.flush()
        _tell(_progress(tally))


def _progress(tally: SendCounts) -> dict[str, Any]:
    return {
        "due": tally.due,
        "done": tally.done,
        "in_flight": tally.in_flight,
        "late": tally.late,
        "by_status": dict(tally.by_status),
        "latencies": dict(tally.latencies),
    }


def _tell(document: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # whoever listened is gone; the input's end says so, too
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    main()
