"""`experiment`: run one of `load/experiments` by name, and print its tables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from load.errors import LoadError
from pilotlight.errors import InvalidInput, MissingExtra, PilotlightError
from pilotlight.output import progress_bar

try:
    from load.experiments.catalogue import EXPERIMENTS
    from load.experiments.experiment import Settings
    from load.experiments.rendering import as_document, as_markdown, as_text
except ModuleNotFoundError as error:
    raise MissingExtra(error, "load") from error

if TYPE_CHECKING:
    from load.experiments.experiment import Result
    from load.experiments.live import LivePlatform
    from pilotlight.output import Output

DATA = "PILOTLIGHT_DATA"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for."""

    name: str
    seeds: tuple[int, ...]
    is_quick: bool
    out: Path
    processes: int
    live: LivePlatform | None
    models: tuple[str, ...] = ()


def list_experiments(output: Output) -> None:
    """Every name with its line."""
    rows = [(each.name, each.description) for each in EXPERIMENTS.values()]
    output.table(("NAME", "WHAT IT SHOWS"), rows)
    if output.as_json:
        output.result([{"name": name, "description": line} for name, line in rows])


def run_experiment(wish: Wish, output: Output) -> None:
    """Run it, print it, and leave Markdown and plots in its folder. Raises InvalidInput."""
    experiment = EXPERIMENTS.get(wish.name)
    if experiment is None:
        known = ", ".join(EXPERIMENTS)
        raise InvalidInput([f"NAME must be one of {known}, was {wish.name!r}"])
    folder = wish.out.expanduser() / wish.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with progress_bar(wish.name) as progress:
            result = experiment.run(
                Settings(
                    seeds=wish.seeds,
                    is_quick=wish.is_quick,
                    data=_data_folder(),
                    out=folder,
                    processes=wish.processes,
                    live=wish.live if experiment.has_live_part else None,
                    models=wish.models,
                    progress=progress,
                )
            )
    except LoadError as error:
        raise PilotlightError(str(error)) from error
    written = folder / "result.md"
    written.write_text(as_markdown(result), encoding="utf-8")
    _tell(result, output)
    output.note(f"written: {', '.join(str(path) for path in (written, *result.images))}")


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
