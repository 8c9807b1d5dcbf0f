"""A run from beginning to end: surveys trace and target, starts workers, gathers their records.

The records are on disk from the first on: in `OUTPUT.parts/` while the run goes on, one Parquet
file after it. A run that was killed leaves the parts, which the report reads as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from load.generator.arrivals import survey_aside
from load.generator.errors import BadTarget, WorkerFailed
from load.generator.idle_memory import IdleMemoryProbe
from load.generator.inspection import inspect
from load.generator.merging import merge_parts, write_about
from load.generator.progress import added_up
from load.generator.record_parts import parts_folder
from load.generator.settings import RequestProtocol
from load.generator.target_url import host_headers, is_host, parse_url
from load.generator.worker import WorkerConfig
from load.trace_spec.trace_spec import open_trace

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable, Callable

    from load.generator.arrivals import ModelAppearance, TraceSurvey
    from load.generator.progress import RunProgress
    from load.generator.settings import RunSettings

_LEAD_S: Final = 0.1
"""Between the order to go and the run's start: every worker has it by then."""
_CODE: Final = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can begin."""

    settings: RunSettings
    prospect: TraceSurvey
    missing: tuple[ModelAppearance, ...]
    """Models that the target does not know."""


async def prepare(settings: RunSettings) -> Prepared:
    """Survey the trace and ask the target what it is. Raises GeneratorError."""
    origin = parse_url(settings.url, is_grpc=settings.protocol is RequestProtocol.GRPC)
    trace = open_trace(settings.trace, seed=settings.seed)
    prospect = await survey_aside(trace, settings.duration_s)
    _require_hosts(settings, prospect)
    settings = replace(settings, processes=min(settings.processes, settings.most_in_flight))
    if settings.protocol is RequestProtocol.GRPC:
        from load.generator.grpc_sender import layout_of  # gRPC is not loaded for the others

        return Prepared(replace(settings, layout=await layout_of(origin)), prospect, ())
    models = [(each.tenant, each.model) for each in prospect.models]
    found = await inspect(settings.url, models, host_header=settings.host_header)
    given = settings.payloads
    told = {
        name: content.to_fields()
        for name, content in found.contents.items()
        if name.partition("/")[2] not in given
    }
    payloads = {**told, **given}
    settings = replace(settings, layout=found.layout, payloads=payloads)
    unknown = set(found.missing)
    missing = tuple(each for each in prospect.models if each.name in unknown)
    return Prepared(settings, prospect, missing)


def _require_hosts(settings: RunSettings, prospect: TraceSurvey) -> None:
    for each in prospect.models:
        for host in host_headers(settings.host_header, each.tenant, each.model).values():
            if not is_host(host):
                raise BadTarget(
                    f"--host-header: {host!r} is no host's name; arrival {each.arrival} of "
                    f"{settings.trace} makes it so, for model {each.model!r} of {each.tenant!r}"
                )


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    progress: RunProgress
    was_interrupted: bool
    has_idle_memory: bool
    """Whether the target told what its idle models held."""


async def play(
    prepared: Prepared,
    output: Path,
    *,
    stop: asyncio.Event,
    on_progress: Callable[[RunProgress], None],
) -> RunResult:
    """Play the trace until its end or until `stop`; the records are in `output` afterwards.

    `output` is a `claimed_output`.

    Raises:
        WorkerFailed: a process ended before its time; what there was is in `output`, too.
        RecordsNotWritten: what there was is in the parts of `output`.
    """
    settings, parts = prepared.settings, parts_folder(output)
    about = _about(prepared)
    write_about(parts, about)
    crew = _WorkerPool(prepared, parts, on_progress)
    memory = IdleMemoryProbe(settings)
    wasted_byte_s: float | None = None
    try:
        await crew.work(stop, memory.begin)
        wasted_byte_s = await memory.end()
    finally:
        progress = crew.progress
        about |= {
            "wasted_memory_byte_s": wasted_byte_s,
            "interrupted": stop.is_set() or progress.done < prepared.prospect.requests,
            "sent_late": progress.late,
            "processes": settings.processes,
        }
        await asyncio.to_thread(merge_parts, parts, output, about)
    return RunResult(progress, stop.is_set(), wasted_byte_s is not None)


def _about(prepared: Prepared) -> dict[str, Any]:
    settings = prepared.settings
    return {
        "kind": "live",
        "trace": settings.trace,
        "url": settings.url,
        "protocol": str(settings.protocol),
        "policy": settings.policy,
        "seed": settings.seed,
        "requests": prepared.prospect.requests,
        "trace_s": prepared.prospect.last_s,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "interrupted": True,
    }


class _WorkerPool:
    """The worker processes of one run."""

    def __init__(
        self, prepared: Prepared, parts: Path, on_progress: Callable[[RunProgress], None]
    ) -> None:
        self._settings = prepared.settings
        self._requests = prepared.prospect.requests
        self._parts = parts
        self._on_progress = on_progress
        self._told: dict[int, dict[str, Any]] = {}
        self._ready: list[asyncio.Event] = []

    @property
    def progress(self) -> RunProgress:
        """How far it is."""
        return added_up(self._requests, self._told.values())

    async def work(self, stop: asyncio.Event, before_go: Callable[[], Awaitable[None]]) -> None:
        """Start, let go, listen; returns when all have ended. Raises WorkerFailed."""
        count = self._settings.processes
        self._ready = [asyncio.Event() for _ in range(count)]
        workers = [await self._start(number) for number in range(count)]
        try:
            async with asyncio.TaskGroup() as group:
                ends = [
                    group.create_task(self._listen(number, worker))
                    for number, worker in enumerate(workers)
                ]
                stopping = group.create_task(_stop_on(stop, workers))
                for ready in self._ready:
                    await ready.wait()
                await before_go()
                if not stop.is_set():
                    _say(workers, f"go {time.monotonic() + _LEAD_S}")
                await asyncio.wait(ends)
                stopping.cancel()
        except* WorkerFailed as failed:
            raise failed.exceptions[0] from None
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()

    async def _start(self, number: int) -> Process:
        orders = WorkerConfig(self._settings, number, self._parts / f"worker-{number}.arrows")
        paths = [_CODE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "load.generator.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 22,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # Ctrl-C reaches us, and we tell them
        )  # fmt: skip
        _say([worker], orders.to_json())
        return worker

    async def _listen(self, number: int, worker: Process) -> None:
        assert worker.stdout is not None
        assert worker.stderr is not None
        async with asyncio.TaskGroup() as group:
            errors = group.create_task(worker.stderr.read())
            while line := await worker.stdout.readline():
                document = json.loads(line)
                if "ready" in document:
                    self._ready[number].set()
                else:
                    self._told[number] = document
                    self._on_progress(self.progress)
        if status := await worker.wait():
            said = [
                text
                for line in errors.result().decode("utf-8", "replace").splitlines()
                if (text := line.strip(" |+-"))
            ]
            how = f"status {status}" if status > 0 else signal.Signals(-status).name
            raise WorkerFailed(
                f"process {number} of the generator ended by {how}: "
                f"{said[-1] if said else 'it said nothing'}"
            )


async def _stop_on(stop: asyncio.Event, workers: list[Process]) -> None:
    await stop.wait()
    _say(workers, "stop")


def _say(workers: list[Process], line: str) -> None:
    for worker in workers:
        assert worker.stdin is not None
        with suppress(ConnectionError):
            worker.stdin.write(line.encode() + b"\n")
