"""Plays a trace against a server for `load run`."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from load.errors import TraceError
from load.generator.content import read_payloads
from load.generator.errors import (
    GeneratorError,
    RecordsNotWritten,
    TargetUnreachable,
    WorkerFailed,
)
from load.generator.output_file import claimed_output
from load.generator.run import Prepared, RunResult, prepare, run_trace
from load.generator.settings import RequestProtocol, RunSettings
from load.generator.target_url import host_headers, is_host
from load.report.run_file import read_run
from load.report.summary import summarise
from load.trace_spec.trace_spec import files_of
from pilotlight.commands.load_runs.progress import load_progress
from pilotlight.commands.load_runs.summary import print_summary
from pilotlight.errors import Interrupted, InvalidInput, RequestFailed
from registry.domain.application import SelectionPolicy
from registry.domain.model import RoutingPolicy
from registry.inference_service.durations import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from load.generator.content import Content
    from pilotlight.output import Output

_MAX_MODELS_NAMED = 5


def run_load(settings: RunSettings, path: Path, output: Output, *, overwrite: bool) -> None:
    """Play the trace, write records to `path`, print the summary. Raises PilotlightError."""
    path = path.expanduser().absolute()
    try:
        ended = asyncio.run(_run(settings, path, output, overwrite=overwrite))
    except (TargetUnreachable, WorkerFailed, RecordsNotWritten) as error:
        raise RequestFailed(str(error)) from error
    except (GeneratorError, TraceError) as error:
        raise InvalidInput(str(error).splitlines()) from error
    if ended.result.progress.done:
        print_summary(output, path, summarise(read_run(path, path.stem)))
    elif output.as_json:
        output.result({"output": str(path), "requests": 0})
    if not ended.result.has_idle_memory:
        output.note(f"idle memory is not recorded: {settings.url} does not report it")
    if ended.signal_number is not None:
        held = "the requests up to then" if ended.result.progress.done else "no requests"
        output.note(f"interrupted; {path} holds {held}")
        raise Interrupted(ended.signal_number)


@dataclass(frozen=True, slots=True)
class _PlayedRun:
    result: RunResult
    signal_number: int | None


async def _run(settings: RunSettings, path: Path, output: Output, *, overwrite: bool) -> _PlayedRun:
    prepared = await prepare(settings)
    with claimed_output(path, overwrite=overwrite, inputs=files_of(settings.trace)):
        _note_missing(output, prepared)
        _note_processes(output, settings, prepared.settings)
        return await _run_trace(prepared, path)


async def _run_trace(prepared: Prepared, path: Path) -> _PlayedRun:
    stop = asyncio.Event()
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        stop.set()

    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, on_signal, each)
    survey = prepared.survey
    with load_progress(survey.last_s, survey.requests) as on_progress:
        try:
            result = await run_trace(prepared, path, stop=stop, on_progress=on_progress)
        except WorkerFailed as error:
            raise WorkerFailed(f"{error}; {path} holds the requests up to then") from error
    return _PlayedRun(result, received[0] if received else None)


def read_settings(
    plain: RunSettings, *, protocol: str, duration: str | None, timeout: str,
    payloads: Sequence[str], examples: Mapping[str, Content],
) -> RunSettings:  # fmt: skip
    """The settings with the flags given as text; raises InvalidInput with every mistake."""
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

    if protocol not in list(RequestProtocol):
        problems.append(f"--protocol must be one of {', '.join(RequestProtocol)}, was {protocol!r}")
    if plain.policy is not None and plain.policy not in [*RoutingPolicy, *SelectionPolicy]:
        allowed = ", ".join([*RoutingPolicy, *SelectionPolicy])
        problems.append(f"--policy must be one of {allowed}, was {plain.policy!r}")
    hosts = host_headers(plain.host_header, "tenant", "model").values()
    if not all(is_host(host) for host in hosts):
        problems.append(
            "--host-header must be a host name, in which {model} and {tenant} are replaced, "
            f"was {plain.host_header!r}"
        )
    duration_s = None if duration is None else seconds("--duration", duration)
    timeout_s = seconds("--timeout", timeout)
    try:
        contents = read_payloads(payloads)
    except GeneratorError as error:
        problems += str(error).splitlines()
    if problems:
        raise InvalidInput(problems)
    return replace(
        plain,
        protocol=RequestProtocol(protocol),
        duration_s=duration_s,
        timeout_s=timeout_s,
        payloads={**contents, **examples},
    )


def _note_missing(output: Output, prepared: Prepared) -> None:
    missing, settings = prepared.missing, prepared.settings
    if not missing:
        return
    named = ", ".join(
        f"{each.name} (first in arrival {each.arrival}, at {each.at_s:.6g} s)"
        for each in missing[:_MAX_MODELS_NAMED]
    )
    more = (
        f" and {len(missing) - _MAX_MODELS_NAMED} more" if len(missing) > _MAX_MODELS_NAMED else ""
    )
    output.note(
        f"{settings.trace}: {len(missing)} of {len(prepared.survey.models)} models do not exist "
        f"at {settings.url}: {named}{more}"
    )


def _note_processes(output: Output, requested: RunSettings, used: RunSettings) -> None:
    if used.processes < requested.processes:
        output.note(
            f"--max-in-flight {used.max_in_flight} is divided among the processes: "
            f"{used.processes} of --processes {requested.processes} are used"
        )
