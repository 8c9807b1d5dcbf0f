"""Plays a trace against a server for `load run`: its settings, its start, the run and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from common.process import on_stop_signals
from common.sizes import parse_duration_s
from load.errors import CredentialsRefused, GeneratorError, RunFailed, TraceError, WorkerFailed
from load.generator.bodies import read_rules_examples
from load.generator.records import claimed_output
from load.generator.run import Prepared, RunResult, prepare, run_trace
from load.generator.settings import (
    Content,
    ContentKind,
    ExampleRules,
    RequestProtocol,
    RunSettings,
    read_payloads,
)
from load.generator.target import host_headers, is_host
from load.report.run_file import read_run
from load.report.summary import summarise
from load.trace_spec import files_of
from pilotlight.commands.kinds import parse_model_names
from pilotlight.commands.live_cluster import live_cluster_file
from pilotlight.commands.load_summary import load_progress, print_summary
from pilotlight.commands.simulated_likeness import cluster_path
from pilotlight.commands.simulated_likeness import hop_s as measured_hop_s
from pilotlight.commands.target import KEY_HINT, PlatformTarget, require_known
from pilotlight.errors import Interrupted, InvalidInput, PilotlightError, RequestFailed
from pilotlight.output import Output
from pilotlight.platform.machine import Machine
from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.policy_names import ROUTING, SELECTION
from variants.labelled_examples import InvalidExamples

_MAX_MODELS_NAMED = 5
_HINT: Final = f"-n, or tenant=NAMESPACE in the trace, names the models' namespace; {KEY_HINT}"


def run_load(
    settings: RunSettings,
    path: Path,
    output: Output,
    *,
    overwrite: bool,
    start: RunStart | None = None,
) -> None:
    """Play the trace, write records to `path`, print the summary. Raises PilotlightError.

    Raises RequestFailed if every request failed.
    """
    path = path.expanduser().absolute()
    try:
        ended = asyncio.run(_run(settings, path, output, overwrite=overwrite, start=start))
    except RunFailed as error:
        raise RequestFailed(str(error)) from error
    except CredentialsRefused as error:
        raise RequestFailed(f"{error}; {_HINT}") from error
    except (GeneratorError, TraceError) as error:
        raise InvalidInput(str(error).splitlines()) from error
    failure = None
    if ended.result.progress.done:
        if start is not None:
            start.write_cluster(path, output)
        summary = summarise(read_run(path, path.stem))
        failure = _failure(summary)
        if failure is None or not output.as_json:
            print_summary(output, path, summary)
        else:
            failure.partial_result = {"output": str(path), **summary}
    elif output.as_json:
        output.result({"output": str(path), "requests": 0})
    if not ended.result.has_idle_memory:
        output.note(f"idle memory is not recorded: {settings.url} does not report it")
    if ended.signal_number is not None:
        held = "the requests up to then" if ended.result.progress.done else "no requests"
        output.note(f"interrupted; {path} holds {held}")
        raise Interrupted(ended.signal_number)
    if failure is not None:
        raise failure


def _failure(summary: Mapping[str, Any]) -> RequestFailed | None:
    if summary["ok"]:
        return None
    statuses = {each["status"] for each in summary.get("failures", ())}
    message = f"all {summary['requests']} requests failed"
    if statuses == {401}:
        return RequestFailed(f"{message} with status 401; {_HINT}")
    return RequestFailed(message)


@dataclass(frozen=True, slots=True)
class _PlayedRun:
    result: RunResult
    signal_number: int | None


async def _run(
    settings: RunSettings, path: Path, output: Output, *, overwrite: bool, start: RunStart | None
) -> _PlayedRun:
    prepared = await prepare(settings)
    with claimed_output(path, overwrite=overwrite, inputs=files_of(settings.trace)):
        _note_missing(output, prepared)
        _note_processes(output, settings, prepared.settings)
        return await _run_trace(prepared, path, start)


async def _run_trace(prepared: Prepared, path: Path, start: RunStart | None) -> _PlayedRun:
    stop = asyncio.Event()
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        stop.set()

    with on_stop_signals(on_signal), load_progress() as on_progress:
        try:
            result = await run_trace(
                prepared,
                path,
                stop=stop,
                on_progress=on_progress,
                start=None if start is None else start.begin,
            )
        except WorkerFailed as error:
            raise WorkerFailed(f"{error}; {path} holds the requests up to then") from error
    return _PlayedRun(result, received[0] if received else None)


def read_settings(
    plain: RunSettings,
    *,
    protocol: str,
    duration: str | None,
    timeout: str,
    payloads: Sequence[str],
    examples: Mapping[str, Content],
) -> RunSettings:
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
    if plain.policy is not None and plain.policy not in [*ROUTING, *SELECTION]:
        problems.append(f"--policy must be one of {ROUTING}, {SELECTION}, was {plain.policy!r}")
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


class RunStart:
    """The platform of --home as it is when a run starts, and the run's cluster file."""

    def __init__(self, target: PlatformTarget) -> None:
        self._target = target
        self._state = ClusterState()

    async def begin(self) -> str:
        """Where the models are, such as `1 of 4 models warm`. Raises RequestFailed."""
        self._state = await self._target.cluster()
        return start_state(self._state)

    def write_cluster(self, run: Path, output: Output) -> None:
        """Describe the platform beside the run: where models were, and times measured until now.

        Nothing if no pod accepted requests then or now; a note where it cannot be written.
        """
        try:
            state = asyncio.run(self._target.cluster())
            if not all(map(_has_pods, (self._state, state))):
                return
            machine = Machine.read(self._target.state_dir.machine)
            text = live_cluster_file(
                state, hop_s=measured_hop_s(run), start=self._state, machine=machine
            )
            cluster_path(run).write_text(text)
        except (PilotlightError, OSError) as error:
            output.note(f"{cluster_path(run)} is not written: {error}")


def _has_pods(state: ClusterState) -> bool:
    return any(each.is_accepting for each in state.pods.values())


def start_state(state: ClusterState) -> str:
    warm = sum(
        any(holder.is_warm for holder in state.holders(record.serving.key).values())
        for record in state.models.values()
    )
    return f"{warm} of {len(state.models)} models warm"


def read_example_options(
    options: Sequence[str], target: PlatformTarget, namespace: str | None
) -> dict[str, Content]:
    """Contents by application of `APPLICATION=FILE`; raises InvalidInput with all mistakes.

    `namespace`: of applications that are named without one.
    """
    if not options:
        return {}
    problems: list[str] = []
    pairs = []
    for option in options:
        name, equals, file = option.partition("=")
        if name and equals and file:
            pairs.append((name, file))
        else:
            problems.append(f"--examples must be APPLICATION=FILE, was {option!r}")
    applications = asyncio.run(target.cluster()).applications
    names = parse_model_names([name for name, _ in pairs], namespace)
    require_known([str(name) for name in names], [str(each) for each in applications])
    found = {}
    for application, (_, file) in zip(names, pairs, strict=True):
        rules = _rules(applications[application], file)
        try:
            read_rules_examples(rules)
        except InvalidExamples as error:
            problems += error.problems
        found[str(application)] = Content(ContentKind.EXAMPLES, examples=rules)
    if problems:
        raise InvalidInput(problems)
    return found


def _rules(application: ApplicationSpec, file: str) -> ExampleRules:
    path = str(Path(file).expanduser().absolute())
    return ExampleRules(path, application.output, application.penalty, application.deadline_s)
