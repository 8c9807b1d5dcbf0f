"""The interface of an experiment: its settings, tables and result.

An experiment is a module with a `run` and an `EXPERIMENT`. `research/pyproject.toml` lists all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from load.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pilotlight.output import Output
    from research.experiments.command import ExperimentFlags
    from research.experiments.harness.live_platform import LivePlatform

Cell: TypeAlias = str | int | float | None
"""A value of a table; None for a missing one."""
Progress: TypeAlias = "Callable[[int, int, str], None]"
"""Called with the number of finished steps, their total, and a description."""
Keep: TypeAlias = "Callable[[str, object, object], None]"
"""Called with the kind of a finished run, its task and its result: values."""


class ExperimentError(LoadError):
    """An experiment cannot be run as requested; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class CellSelection:
    """Part of an experiment that compares policies in many cells."""

    half: str = "both"
    """choose, report or both: constants are chosen on one half and reported on the other."""
    count: int | None = None
    """The first cells of the half; None: the experiment's own number."""
    numbers: tuple[int, ...] = ()
    """These cells only; empty: `count` of them."""
    policies: tuple[str, ...] = ()
    """Empty: all."""
    reused: Path | None = None
    """Results of an earlier run, for the policies that do not run."""

    @property
    def is_part(self) -> bool:
        """Whether only some cells or policies run, as while constants are chosen."""
        return self != CellSelection()


@dataclass(frozen=True, slots=True)
class Settings:
    seeds: tuple[int, ...] = ()
    """Empty: the experiment's own."""
    is_quick: bool = False
    """A small part that takes seconds: shows that the experiment works, not what it finds."""
    data: Path | None = None
    """Folder of public traces and of figures from the literature."""
    out: Path | None = None
    """Folder for plots; None: none are drawn."""
    processes: int = 1
    """How many simulations may run in parallel."""
    live: LivePlatform | None = None
    """Runs the parts that need a real platform; None: simulated parts only."""
    applications: Path | None = None
    """Folder of the demo applications; set for experiments that need them."""
    models: tuple[str, ...] = ()
    """The models of the experiment's live part; empty: its default."""
    cells: CellSelection = CellSelection()
    progress: Progress = lambda _done, _total, _text: None
    keep: Keep = lambda _what, _task, _result: None
    """Called as soon as a run has ended."""

    def file(self, name: str) -> Path | None:
        """A file of the data folder; None if it does not exist."""
        path = self.data / name if self.data is not None else None
        return path if path is not None and path.is_file() else None

    def required_file(self, name: str) -> Path:
        """A file of the data folder. Raises ExperimentError if it does not exist."""
        if (path := self.file(name)) is None:
            raise ExperimentError(f"PILOTLIGHT_DATA must name a folder with {name}")
        return path


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; a column names its unit."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Result:
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    """For readers of the tables: seeds, conditions, what was left out and why."""
    images: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    description: str
    """One line."""
    run: Callable[[Settings], Result]
    has_live_part: bool = False
    has_cells: bool = False
    """Whether it uses `Settings.cells`."""
    needs_applications: bool = False
    """Whether it uses `Settings.applications`."""

    def run_command(self, flags: ExperimentFlags, output: Output) -> None:
        """Run it as `pilotlight experiment` was asked to. Raises PilotlightError."""
        from research.experiments.harness.running import run_command  # workers need no platform

        run_command(self, flags, output)
