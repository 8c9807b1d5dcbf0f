"""What an experiment is: a name, what it shows, what it is given, and what it returns.

Values only. An experiment is a module with a `run` and an `EXPERIMENT`; `catalogue` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from load.experiments.live_platform import LivePlatform

Cell: TypeAlias = str | int | float | None
"""A value of a table; None is one that there is not."""
Progress: TypeAlias = "Callable[[int, int, str], None]"
"""Told how many steps are done, of how many, and what goes on."""


Keep: TypeAlias = "Callable[[str, object, object], None]"
"""Told what kind of run ended, what it was to do, and what it came to: values."""


def _silent(_done: int, _total: int, _text: str) -> None:
    return


def _forgotten(_what: str, _task: object, _found: object) -> None:
    return


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run of an experiment is given."""

    seeds: tuple[int, ...] = ()
    """Empty: the experiment's own."""
    is_quick: bool = False
    """A small part of it, in seconds: shows that it works, its figures mean little."""
    data: Path | None = None
    """Folder of public traces and of figures from the literature; None: there is none."""
    out: Path | None = None
    """Folder for plots; None: none are drawn."""
    processes: int = 1
    """How many simulations may run side by side."""
    live: LivePlatform | None = None
    """Who runs the parts that need a real platform; None: simulated parts only."""
    models: tuple[str, ...] = ()
    """Which of the experiment's models are run live; empty: its own choice."""
    progress: Progress = _silent
    keep: Keep = _forgotten
    """Told of each simulation as soon as it has ended."""

    def file(self, name: str) -> Path | None:
        """A file of the data folder, if it is there."""
        path = self.data / name if self.data is not None else None
        return path if path is not None and path.is_file() else None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; a column names its unit."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What an experiment came to."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    """What to know when reading the tables: seeds, what was left out and why."""
    images: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """One entry of the catalogue."""

    name: str
    description: str
    """One line."""
    run: Callable[[Settings], Result]
    has_live_part: bool = False
