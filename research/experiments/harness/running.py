"""Runs an experiment; prints and writes its tables and single results."""

import dataclasses
import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from common.child_process import python_environment, python_module
from common.parent_death import dies_with_this_thread
from load.errors import LoadError
from pilotlight.errors import Interrupted, InvalidInput, PilotlightError, on_first_signal
from pilotlight.output import Output, clear_outputs, progress_bar, require_free
from pilotlight.state_dir import StateDir
from research.experiments.command import ExperimentFlags
from research.experiments.harness.experiment import (
    CellSelection,
    Experiment,
    ExperimentError,
    Result,
    Settings,
)
from research.experiments.harness.rendering import as_document, as_markdown, as_text
from research.live.live_platform import LocalLivePlatform

_DATA = "PILOTLIGHT_DATA"
_TABLES_FILE: Final = "result.md"
_RUNS_FILE: Final = "runs.jsonl"
_HALVES: Final = ("choose", "report", "both")


class ResultLog:
    """A JSON document per line of each result as soon as it is there; truncated at the start.

    An interrupted experiment writes no tables; this log holds its results so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        """Number of results in the file."""
        self._file = path.open("wb", buffering=0)

    def __enter__(self) -> "ResultLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, what: str, task: object, result: object) -> None:
        """Append one result in one write. Raises ExperimentError."""
        document = {"what": what, "task": _plain(task), "result": _plain(result)}
        try:
            self._file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise ExperimentError(f"--out: cannot write {self.path}: {error}") from error
        self.count += 1


def _plain(value: Any) -> Any:
    """Convert to JSON types: dataclasses to objects, arrays to lists, unknown types to text."""
    match value:
        case Enum():
            return value.value
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {each.name: _plain(getattr(value, each.name)) for each in fields}
        case _:
            return str(getattr(value, "__qualname__", value))


def run_command(experiment: Experiment, flags: ExperimentFlags, output: Output) -> None:
    """Run it as `pilotlight experiment` was asked to. Raises as `run_experiment` does."""
    state_dir = StateDir.of(flags.home)
    made = _prepare_applications(state_dir.root, output) if experiment.needs_applications else None
    settings = Settings(
        seeds=flags.seeds,
        is_quick=flags.is_quick,
        processes=flags.processes,
        live=LocalLivePlatform(state_dir, output) if flags.live else None,
        applications=made,
        models=flags.models,
        cells=CellSelection(
            flags.half or "both", flags.cells, flags.cell_numbers, flags.policies, flags.reused
        ),
    )
    run_experiment(experiment, settings, output, out=flags.out, overwrite=flags.overwrite)


def _prepare_applications(folder: Path, output: Output) -> Path:
    """Train the demo applications unless they are there; returns the folder that holds them."""
    target = folder / "applications"
    if target.is_dir():
        return target
    if find_spec("sklearn") is None:
        raise PilotlightError(
            "scikit-learn is not installed; it comes with `pip install 'pilotlight[demo]'`"
        )
    output.note(f"Training the demo applications once, in {target}: about 30 s.")
    folder.mkdir(parents=True, exist_ok=True)
    module = python_module("research.experiments.sneakpeek.make_applications")
    made = subprocess.run(
        dies_with_this_thread([*module, str(target)]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=python_environment({**os.environ, "OMP_NUM_THREADS": "1"}),
    )
    if made.returncode:
        raise PilotlightError(f"cannot train the applications: {made.stderr.strip()[-500:]}")
    return target


def run_experiment(
    experiment: Experiment,
    settings: Settings,
    output: Output,
    *,
    out: Path,
    overwrite: bool = False,
) -> None:
    """Run an experiment, print its tables, and write tables and plots to a folder in `out`.

    The result of each single run is appended to `runs.jsonl` when the run ends.

    Raises:
        InvalidInput: the settings are not for this experiment, or the folder cannot be written.
        Interrupted: by a signal.
    """
    if settings.cells.is_part and not experiment.has_cells:
        raise InvalidInput(
            [f"--half, --cells, --cell, --policy and --reuse are not for {experiment.name}"]
        )
    if settings.cells.half not in _HALVES:
        raise InvalidInput(
            [f"--half must be one of {', '.join(_HALVES)}, was {settings.cells.half!r}"]
        )
    folder = out.expanduser() / experiment.name
    files = [folder / _TABLES_FILE, folder / _RUNS_FILE]
    require_free(files, overwrite=overwrite)
    clear_outputs(files)
    with _report_unwritable(folder):
        with ResultLog(folder / _RUNS_FILE) as log:
            result = _run(experiment, replace(settings, out=folder), log, output)
        written = folder / _TABLES_FILE
        written.write_text(as_markdown(result), encoding="utf-8")
    _print_result(result, output)
    output.note(f"written: {', '.join(str(path) for path in (written, *result.images))}")


@contextmanager
def _report_unwritable(folder: Path) -> Iterator[None]:
    """Turns an OSError about the folder into a PilotlightError."""
    try:
        yield
    except OSError as error:
        if not str(error.filename or "").startswith(str(folder)):
            raise
        raise PilotlightError(f"--out: cannot write {folder}: {error}") from error


def _run(experiment: Experiment, settings: Settings, log: ResultLog, output: Output) -> Result:
    received: list[int] = []

    def interrupt(number: int) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    try:
        with on_first_signal(interrupt), progress_bar(experiment.name) as progress:
            return experiment.run(
                replace(
                    settings,
                    data=_data_folder(),
                    live=settings.live if experiment.has_live_part else None,
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
    """A note on the results of an experiment that ended before its tables were made."""
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
