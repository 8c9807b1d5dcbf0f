"""Runs one of `load/experiments`, prints its tables and keeps them with the single results."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from load.errors import LoadError
from load.experiments.experiments import EXPERIMENTS
from load.experiments.harness.experiment import Settings
from load.experiments.harness.rendering import as_document, as_markdown, as_text
from load.experiments.harness.result_log import ResultLog
from pilotlight.commands.output_files import clear_outputs, require_free
from pilotlight.errors import Interrupted, InvalidInput, PilotlightError
from pilotlight.output import progress_bar
from pilotlight.signals import on_first_signal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from load.experiments.harness.experiment import Experiment, Result
    from load.experiments.harness.live_platform import LivePlatform
    from pilotlight.output import Output

_DATA = "PILOTLIGHT_DATA"
_TABLES_FILE: Final = "result.md"
_RUNS_FILE: Final = "runs.jsonl"


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """The flags of `experiment`."""

    name: str
    seeds: tuple[int, ...]
    is_quick: bool
    out: Path
    processes: int
    live: LivePlatform | None
    models: tuple[str, ...] = ()
    overwrite: bool = False


def list_experiments(output: Output) -> None:
    rows = [(each.name, each.description) for each in EXPERIMENTS.values()]
    output.table(("NAME", "WHAT IT SHOWS"), rows)
    if output.as_json:
        output.result([{"name": name, "description": line} for name, line in rows])


def run_experiment(options: ExperimentOptions, output: Output) -> None:
    """Run an experiment, print its tables, and write them as Markdown and plots.

    The result of each single run is appended to `runs.jsonl` when the run ends.

    Raises:
        InvalidInput: the experiment does not exist, or the folder cannot be written.
        Interrupted: by a signal.
    """
    experiment = EXPERIMENTS.get(options.name)
    if experiment is None:
        known = ", ".join(EXPERIMENTS)
        raise InvalidInput([f"NAME must be one of {known}, was {options.name!r}"])
    folder = _cleared_folder(options)
    with _report_unwritable(folder):
        with ResultLog(folder / _RUNS_FILE) as log:
            result = _run(experiment, options, folder, log, output)
        written = folder / _TABLES_FILE
        written.write_text(as_markdown(result), encoding="utf-8")
    _print_result(result, output)
    output.note(f"written: {', '.join(str(path) for path in (written, *result.images))}")


def _cleared_folder(options: ExperimentOptions) -> Path:
    """The experiment's folder, without earlier results."""
    folder = options.out.expanduser() / options.name
    files = [folder / _TABLES_FILE, folder / _RUNS_FILE]
    require_free(files, overwrite=options.overwrite)
    clear_outputs(files)
    return folder


@contextmanager
def _report_unwritable(folder: Path) -> Iterator[None]:
    """Turns an OSError about the folder into a PilotlightError."""
    try:
        yield
    except OSError as error:
        if not str(error.filename or "").startswith(str(folder)):
            raise
        raise PilotlightError(f"--out: cannot write {folder}: {error}") from error


def _run(
    experiment: Experiment, options: ExperimentOptions, folder: Path, log: ResultLog, output: Output
) -> Result:
    received: list[int] = []

    def interrupt(number: int) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    try:
        with on_first_signal(interrupt), progress_bar(options.name) as progress:
            return experiment.run(
                Settings(
                    seeds=options.seeds,
                    is_quick=options.is_quick,
                    data=_data_folder(),
                    out=folder,
                    processes=options.processes,
                    live=options.live if experiment.has_live_part else None,
                    models=options.models,
                    progress=progress,
                    keep=log.keep,
                )
            )
    except (KeyboardInterrupt, Interrupted) as error:
        number = received[0] if received else getattr(error, "signal_number", signal.SIGINT)
        output.note(_kept_text(log, "interrupted"))
        if output.as_json:
            output.result({"interrupted": True, **_kept_document(log)})
        raise Interrupted(number) from error
    except LoadError as error:
        output.note(_kept_text(log, "ended early"))
        failure = PilotlightError(str(error))
        failure.partial_result = _kept_document(log)
        raise failure from error


def _kept_text(log: ResultLog, how: str) -> str:
    """Where to find the results of an experiment that ended before its tables were made."""
    if not log.count:
        return f"{how} before any run had ended"
    return f"{how}; {log.path} holds the results of {log.count} runs"


def _kept_document(log: ResultLog) -> dict[str, Any]:
    return {"runs": log.count, "kept": str(log.path)}


def _data_folder() -> Path | None:
    text = os.environ.get(_DATA, "")
    return Path(text).expanduser() if text else None


def _print_result(result: Result, output: Output) -> None:
    if output.as_json:
        output.result(as_document(result))
        return
    for table in result.tables:
        rows = [[as_text(cell) for cell in row] for row in table.rows]
        output.table(table.columns, rows, title=table.title)
        output.line()
    for note in result.notes:
        output.line(f"- {note}")
