"""`experiment`: run one of `load/experiments` by name, and print its tables."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from load.errors import LoadError
from pilotlight.errors import Interrupted, InvalidInput, MissingExtra, PilotlightError
from pilotlight.output import progress_bar
from pilotlight.signals import on_signal

try:
    from load.experiments.experiment import Settings
    from load.experiments.experiments import EXPERIMENTS
    from load.experiments.recording_platform import RecordingPlatform
    from load.experiments.rendering import as_document, as_markdown, as_text
    from load.experiments.result_log import ResultLog
    from pilotlight.commands.outputs import claim, require_free
except ModuleNotFoundError as error:
    raise MissingExtra(error, "load") from error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from load.experiments.experiment import Experiment, Result
    from load.experiments.live_platform import LivePlatform
    from pilotlight.output import Output

DATA = "PILOTLIGHT_DATA"
_TABLES: Final = "result.md"
_RUNS: Final = "runs.jsonl"


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """What is asked for."""

    name: str
    seeds: tuple[int, ...]
    is_quick: bool
    out: Path
    processes: int
    live: LivePlatform | None
    models: tuple[str, ...] = ()
    overwrite: bool = False


def list_experiments(output: Output) -> None:
    """Every name with its line."""
    rows = [(each.name, each.description) for each in EXPERIMENTS.values()]
    output.table(("NAME", "WHAT IT SHOWS"), rows)
    if output.as_json:
        output.result([{"name": name, "description": line} for name, line in rows])


def run_experiment(wish: ExperimentOptions, output: Output) -> None:
    """Run it, print it, and leave Markdown and plots in its folder.

    What single runs came to is in the folder from the moment they end.

    Raises:
        InvalidInput: there is no such experiment, or the folder cannot be written.
        Interrupted: by a signal.
    """
    experiment = EXPERIMENTS.get(wish.name)
    if experiment is None:
        known = ", ".join(EXPERIMENTS)
        raise InvalidInput([f"NAME must be one of {known}, was {wish.name!r}"])
    folder = _claimed(wish)
    with _told_if_not_writable(folder):
        with ResultLog(folder / _RUNS) as kept:
            result = _run(experiment, wish, folder, kept, output)
        written = folder / _TABLES
        written.write_text(as_markdown(result), encoding="utf-8")
    _tell(result, output)
    output.note(f"written: {', '.join(str(path) for path in (written, *result.images))}")


def _claimed(wish: ExperimentOptions) -> Path:
    """The folder, in which there is no result."""
    folder = wish.out.expanduser() / wish.name
    files = [folder / _TABLES, folder / _RUNS]
    require_free(files, overwrite=wish.overwrite)
    claim(files)
    return folder


@contextmanager
def _told_if_not_writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not str(error.filename or "").startswith(str(folder)):
            raise
        raise PilotlightError(f"--out: cannot write {folder}: {error}") from error


def _run(
    experiment: Experiment, wish: ExperimentOptions, folder: Path, kept: ResultLog, output: Output
) -> Result:
    came: list[int] = []

    def interrupt(number: int) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    live = wish.live if experiment.has_live_part else None
    try:
        with on_signal(interrupt), progress_bar(wish.name) as progress:
            return experiment.run(
                Settings(
                    seeds=wish.seeds,
                    is_quick=wish.is_quick,
                    data=_data_folder(),
                    out=folder,
                    processes=wish.processes,
                    live=None if live is None else RecordingPlatform(live, kept.keep),
                    models=wish.models,
                    progress=progress,
                    keep=kept.keep,
                )
            )
    except (KeyboardInterrupt, Interrupted) as error:
        number = came[0] if came else getattr(error, "signal_number", signal.SIGINT)
        output.note(_kept_text(kept, "interrupted"))
        if output.as_json:
            output.result({"interrupted": True, **_kept_document(kept)})
        raise Interrupted(number) from error
    except LoadError as error:
        output.note(_kept_text(kept, "ended early"))
        failure = PilotlightError(str(error))
        failure.kept = _kept_document(kept)
        raise failure from error


def _kept_text(kept: ResultLog, how: str) -> str:
    """Where the results are of an experiment without tables."""
    if not kept.count:
        return f"{how} before any run had ended"
    return f"{how}; {kept.path} holds what {kept.count} runs came to before"


def _kept_document(kept: ResultLog) -> dict[str, Any]:
    return {"runs": kept.count, "kept": str(kept.path)}


def _data_folder() -> Path | None:
    text = os.environ.get(DATA, "")
    return Path(text).expanduser() if text else None


def _tell(result: Result, output: Output) -> None:
    if output.as_json:
        output.result(as_document(result))
        return
    for table in result.tables:
        rows = [[as_text(cell) for cell in row] for row in table.rows]
        output.table(table.columns, rows, title=table.title)
        output.line()
    for note in result.notes:
        output.line(f"- {note}")
