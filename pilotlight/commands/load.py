"""`load run`: play a trace against a URL and record every request; the summary of it."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pilotlight.commands.load_progress import load_progress
from pilotlight.errors import (
    Interrupted,
    InvalidInput,
    MissingExtra,
    RequestFailed,
)
from registry.domain.model import RoutingPolicy
from registry.inference_service.durations import parse_duration_s

try:
    from load.errors import TraceError
    from load.generator.content import read_payloads
    from load.generator.errors import (
        GeneratorError,
        RecordsNotWritten,
        TargetUnreachable,
        WorkerFailed,
    )
    from load.generator.output_file import claimed_output
    from load.generator.run import Prepared, RunResult, play, prepare
    from load.generator.settings import RequestProtocol, RunSettings
    from load.generator.target_url import host_headers, is_host
    from load.report.run_file import read_run
    from load.report.summary import summarise
    from load.trace_spec.named_files import files_of
except ModuleNotFoundError as error:
    raise MissingExtra(error, "load") from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pilotlight.output import Output

_MOST_MODELS_SHOWN = 20
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class LoadRunOptions:
    """What the flags say, as they came."""

    trace: str
    url: str
    output: Path
    protocol: str
    policy: str | None
    host_header: str | None
    processes: int
    duration: str | None
    seed: int
    max_in_flight: int
    timeout: str
    payloads: Sequence[str]
    overwrite: bool


def run_load(wish: LoadRunOptions, output: Output) -> None:
    """Play the trace and print the summary."""
    settings = _settings(wish)
    try:
        path, ended = asyncio.run(_run(settings, wish, output))
    except (TargetUnreachable, WorkerFailed, RecordsNotWritten) as error:
        raise RequestFailed(str(error)) from error
    except (GeneratorError, TraceError) as error:
        raise InvalidInput(str(error).splitlines()) from error
    if ended.played.progress.done:
        _tell(output, path, summarise(read_run(path, path.stem)))
    elif output.as_json:
        output.result({"output": str(path), "requests": 0})
    if not ended.played.has_idle_memory:
        output.note(f"idle memory is not known: {settings.url} does not tell it")
    if ended.signal_number is not None:
        held = "the requests up to then" if ended.played.progress.done else "no request yet"
        output.note(f"interrupted; {path} holds {held}")
        raise Interrupted(ended.signal_number)


@dataclass(frozen=True, slots=True)
class _Ended:
    played: RunResult
    signal_number: int | None


async def _run(settings: RunSettings, wish: LoadRunOptions, output: Output) -> tuple[Path, _Ended]:
    path = wish.output.expanduser().absolute()
    prepared = await prepare(settings)
    with claimed_output(path, overwrite=wish.overwrite, inputs=files_of(settings.trace)):
        _note_missing(output, prepared)
        _note_processes(output, settings, prepared.settings)
        return path, await _played(prepared, path)


async def _played(prepared: Prepared, path: Path) -> _Ended:
    stop = asyncio.Event()
    came: list[int] = []

    def on_signal(number: int) -> None:
        came.append(number)
        stop.set()

    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, on_signal, each)
    prospect = prepared.prospect
    with load_progress(prospect.last_s, prospect.requests) as on_progress:
        try:
            played = await play(prepared, path, stop=stop, on_progress=on_progress)
        except WorkerFailed as error:
            raise WorkerFailed(f"{error}; {path} holds the requests up to then") from error
    return _Ended(played, came[0] if came else None)


def _settings(wish: LoadRunOptions) -> RunSettings:
    """The typed settings; InvalidInput with every mistake."""
    problems: list[str] = []

    def seconds(flag: str, text: str) -> float:
        try:
            value = parse_duration_s(text)
        except ValueError as error:
            problems.append(f"{flag} must be {error}, was {text!r}")
            return 1.0
        if value <= 0:
            problems.append(f"{flag} must be longer than 0, was {text!r}")
        return value

    if wish.protocol not in list(RequestProtocol):
        problems.append(
            f"--protocol must be one of {', '.join(RequestProtocol)}, was {wish.protocol!r}"
        )
    if wish.policy is not None and wish.policy not in list(RoutingPolicy):
        allowed = ", ".join(RoutingPolicy)
        problems.append(f"--policy must be one of {allowed}, was {wish.policy!r}")
    hosts = host_headers(wish.host_header, "tenant", "model").values()
    if not all(is_host(host) for host in hosts):
        problems.append(
            "--host-header must be a host's name, with {model} and {tenant} where those of a "
            f"request belong, was {wish.host_header!r}"
        )
    duration_s = None if wish.duration is None else seconds("--duration", wish.duration)
    timeout_s = seconds("--timeout", wish.timeout)
    try:
        payloads = read_payloads(wish.payloads)
    except GeneratorError as error:
        problems += str(error).splitlines()
    if problems:
        raise InvalidInput(problems)
    return RunSettings(
        trace=wish.trace,
        url=wish.url,
        protocol=RequestProtocol(wish.protocol),
        policy=wish.policy,
        host_header=wish.host_header,
        processes=wish.processes,
        duration_s=duration_s,
        seed=wish.seed,
        most_in_flight=wish.max_in_flight,
        timeout_s=timeout_s,
        payloads={name: content.to_fields() for name, content in payloads.items()},
    )


def _note_missing(output: Output, prepared: Prepared) -> None:
    missing, settings = prepared.missing, prepared.settings
    if not missing:
        return
    named = ", ".join(
        f"{each.name} (first in arrival {each.arrival}, at {each.at_s:.6g} s)"
        for each in missing[:_MOST_NAMED]
    )
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    output.note(
        f"{settings.trace}: {len(missing)} of {len(prepared.prospect.models)} models are not "
        f"known at {settings.url}: {named}{more}"
    )


def _note_processes(output: Output, asked: RunSettings, used: RunSettings) -> None:
    if used.processes < asked.processes:
        output.note(
            f"--max-in-flight {used.most_in_flight} is shared by the processes: "
            f"{used.processes} of --processes {asked.processes} are used"
        )


def _tell(output: Output, path: Path, summary: dict[str, Any]) -> None:
    if output.as_json:
        output.result({"output": str(path), **summary})
        return
    latency = summary["latency_s"]
    lateness = summary["send_lateness_s"]
    statuses = ", ".join(f"{_status(key)}: {n}" for key, n in summary["by_status"].items())
    starts = ", ".join(f"{key}: {n}" for key, n in summary["by_start"].items()) or "not told"
    for line in (
        f"records       {path}",
        f"requests      {summary['requests']} in {summary['duration_s']:.1f} s",
        f"status        {statuses}",
        f"start         {starts}",
        f"offered       {_rate(summary['offered_rps'])}",
        f"goodput       {summary['goodput_rps']:.1f} requests/s answered in time",
        f"deadlines     {summary['deadline_misses']} of {summary['with_deadline']} missed",
        f"latency       {_percentiles(latency)}",
        f"idle memory   {_gigabyte_seconds(summary['wasted_memory_byte_s'])}",
        f"sent late     {summary['late_sends']} by more than "
        f"{1000 * summary['late_after_s']:.0f} ms, {_percentiles(lateness)}; "
        f"{summary['not_sent']} not sent",
    ):
        output.line(line)
    for key, title in (("by_policy", "POLICY"), ("by_model", "MODEL")):
        rows = list(summary[key].items())
        if not rows:
            continue
        output.line()
        output.table(
            (title, "REQUESTS", "OK", "COLD", "MISSED", "P50 S", "P90 S", "P95 S", "P99 S"),
            [_row(name, each) for name, each in rows[:_MOST_MODELS_SHOWN]],
        )
        if len(rows) > _MOST_MODELS_SHOWN:
            output.line(f"and {len(rows) - _MOST_MODELS_SHOWN} more")


def _rate(rps: float | None) -> str:
    return "at one moment" if rps is None else f"{rps:.1f} requests/s"


def _row(name: str, each: dict[str, Any]) -> tuple[str, ...]:
    counts = (each["requests"], each["ok"], each["cold_starts"], each["deadline_misses"])
    latency = each["latency_s"]
    return (name, *map(str, counts), *(_seconds(latency[f"p{p}"]) for p in (50, 90, 95, 99)))


def _status(key: str) -> str:
    return "no answer" if key == "0" else key


def _percentiles(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_seconds(value)} s" for name, value in values.items())


def _gigabyte_seconds(byte_s: float | None) -> str:
    return "not told" if byte_s is None else f"{byte_s / 1e9:.4g} GB s held by models not in use"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
