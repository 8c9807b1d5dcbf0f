"""What can go wrong when a cluster is described or simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence


class SimulatorError(LoadError):
    """Root of the simulator's errors; the text tells the user what to do."""


class InvalidCluster(SimulatorError):
    """A cluster file has mistakes; `problems` holds all of them, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class WrongTrace(SimulatorError):
    """A trace cannot be read, has other columns, or goes back in time."""


class CannotWrite(SimulatorError):
    """A file of records cannot be written."""
