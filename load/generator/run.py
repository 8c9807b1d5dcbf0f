"""A run of the load generator: surveys trace and target, starts workers, gathers their records.

Records are on disk from the start: in `OUTPUT.parts/` during the run, in one Parquet file after it.
A killed run leaves the parts, which the report reads as well.
"""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from load.errors import GeneratorError, WorkerFailed
from load.generator.records import merge_parts, parts_folder, write_metadata
from load.generator.settings import (
    Content,
    RequestProtocol,
    RunProgress,
    RunSettings,
    total_progress,
)
from load.generator.target import IdleMemoryProbe, host_headers, inspect, is_host, parse_url
from load.generator.trace_arrivals import ModelAppearance, TraceSurvey, survey_in_thread
from load.generator.worker import WorkerConfig
from load.trace_spec import open_trace

_START_DELAY_S: Final = 0.1
"""Delay of the run's start after the command, so that every worker receives the command before."""
_CODE_FOLDER: Final = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to start."""

    settings: RunSettings
    survey: TraceSurvey
    missing: tuple[ModelAppearance, ...]
    """Models that do not exist at the target."""


async def prepare(settings: RunSettings) -> Prepared:
    """Survey the trace and inspect the target. Raises GeneratorError."""
    parse_url(settings.url)  # raises before the trace is read
    trace = open_trace(settings.trace, seed=settings.seed)
    survey = await survey_in_thread(trace, settings.duration_s)
    _require_hosts(settings, survey)
    settings = replace(settings, processes=min(settings.processes, settings.max_in_flight))
    models = [(each.tenant, each.model) for each in survey.models]
    found = await inspect(settings, models)
    given = settings.payloads
    if settings.protocol is not RequestProtocol.OPENAI:
        _require_inputs(found.without_inputs, given)
    detected = {
        name: content
        for name, content in found.contents.items()
        if name.partition("/")[2] not in given
    }
    settings = replace(settings, layout=found.layout, payloads=detected | given)
    unknown = {name for name in found.missing if name not in settings.payloads}
    missing = tuple(each for each in survey.models if each.name in unknown)
    return Prepared(settings, survey, missing)


def _require_inputs(without: Sequence[str], given: Mapping[str, Content]) -> None:
    """Raises GeneratorError for models whose inputs neither metadata nor the user give."""
    unknown = [name for name in without if not {name, name.partition("/")[2]}.intersection(given)]
    if unknown:
        raise GeneratorError(
            "\n".join(
                f"{name}: its metadata lists no inputs: give the body of its requests with "
                f"--payload {name.partition('/')[2]}=FILE (JSON or an image), or =text or =image"
                for name in unknown
            )
        )


def _require_hosts(settings: RunSettings, survey: TraceSurvey) -> None:
    for each in survey.models:
        for host in host_headers(settings.host_header, each.tenant, each.model).values():
            if not is_host(host):
                raise GeneratorError(
                    f"--host-header: {host!r} is not a host name; it results from arrival "
                    f"{each.arrival} of {settings.trace}, model {each.model!r} of {each.tenant!r}"
                )


@dataclass(frozen=True, slots=True)
class RunResult:
    progress: RunProgress
    was_interrupted: bool
    has_idle_memory: bool
    """Whether the target reported the memory of its idle models."""


async def run_trace(
    prepared: Prepared,
    output: Path,
    *,
    stop: asyncio.Event,
    on_progress: Callable[[RunProgress], None],
    start: Callable[[], Awaitable[str]] | None = None,
) -> RunResult:
    """Send the trace until its end or until `stop`; afterwards `output` has the records.

    `output` is a `claimed_output`. `start` is awaited last before the first request, and returns
    where the models are then, such as `1 of 4 models warm`.

    Raises:
        WorkerFailed: a process ended early; `output` has the records so far.
        RunFailed: the records so far are in the parts of `output`.
    """
    settings, parts = prepared.settings, parts_folder(output)
    metadata = _metadata(prepared)
    write_metadata(parts, metadata)
    pool = _WorkerPool(prepared, parts, on_progress)
    memory = IdleMemoryProbe(settings)
    wasted_byte_s: float | None = None

    async def begin() -> None:
        await memory.begin()
        if start is not None:
            metadata["start_state"] = await start()

    try:
        await pool.run(stop, begin)
        wasted_byte_s = await memory.end()
    finally:
        progress = pool.progress
        metadata |= {
            "wasted_memory_byte_s": wasted_byte_s,
            "interrupted": stop.is_set() or progress.done < prepared.survey.requests,
            "sent_late": progress.late,
            "processes": settings.processes,
        }
        await asyncio.to_thread(merge_parts, parts, output, metadata)
    return RunResult(progress, stop.is_set(), wasted_byte_s is not None)


def _metadata(prepared: Prepared) -> dict[str, Any]:
    settings = prepared.settings
    return {
        "kind": "live",
        "trace": settings.trace,
        "url": settings.url,
        "protocol": str(settings.protocol),
        "policy": settings.policy,
        "seed": settings.seed,
        "requests": prepared.survey.requests,
        "trace_s": prepared.survey.last_s,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "interrupted": True,
    }


class _WorkerPool:
    def __init__(
        self, prepared: Prepared, parts: Path, on_progress: Callable[[RunProgress], None]
    ) -> None:
        self._settings = prepared.settings
        self._requests = prepared.survey.requests
        self._parts = parts
        self._on_progress = on_progress
        self._reports: dict[int, dict[str, Any]] = {}
        self._ready = [asyncio.Event() for _ in range(self._settings.processes)]

    @property
    def progress(self) -> RunProgress:
        return total_progress(self._requests, self._reports.values())

    async def run(self, stop: asyncio.Event, before_go: Callable[[], Awaitable[None]]) -> None:
        """Start the workers, wait until all are ready, then until all end. Raises WorkerFailed."""
        workers = [await self._start(number) for number in range(self._settings.processes)]
        try:
            async with asyncio.TaskGroup() as group:
                ends = [
                    group.create_task(self._read_reports(number, worker))
                    for number, worker in enumerate(workers)
                ]
                stopping = group.create_task(_stop_on(stop, workers))
                for ready in self._ready:
                    await ready.wait()
                await before_go()
                if not stop.is_set():
                    _send_line(workers, f"go {time.monotonic() + _START_DELAY_S}".encode())
                await asyncio.wait(ends)
                stopping.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()

    async def _start(self, number: int) -> Process:
        part = str(self._parts / f"worker-{number}.arrows")
        paths = [_CODE_FOLDER, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "load.generator.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 22,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the workers
        )
        _send_line([worker], WorkerConfig(self._settings, number, part).to_json())
        return worker

    async def _read_reports(self, number: int, worker: Process) -> None:
        assert worker.stdout is not None
        assert worker.stderr is not None
        async with asyncio.TaskGroup() as group:
            errors = group.create_task(worker.stderr.read())
            while line := await worker.stdout.readline():
                report = orjson.loads(line)
                if "ready" in report:
                    self._ready[number].set()
                else:
                    self._reports[number] = report
                    self._on_progress(self.progress)
        if status := await worker.wait():
            lines = [
                text
                for line in errors.result().decode("utf-8", "replace").splitlines()
                if (text := line.strip(" |+-"))
            ]
            how = f"status {status}" if status > 0 else signal.Signals(-status).name
            raise WorkerFailed(
                f"process {number} of the generator ended by {how}: "
                f"{lines[-1] if lines else 'without an error message'}"
            )


async def _stop_on(stop: asyncio.Event, workers: list[Process]) -> None:
    await stop.wait()
    _send_line(workers, b"stop")


def _send_line(workers: list[Process], line: bytes) -> None:
    for worker in workers:
        assert worker.stdin is not None
        with suppress(ConnectionError):
            worker.stdin.write(line + b"\n")
