"""Errors of cluster files and of simulated runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence


class SimulatorError(LoadError):
    """Root of the simulator's errors; the message says what to do."""


class InvalidCluster(SimulatorError):
    """A cluster file has mistakes; `problems` has all of them, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class WrongTrace(SimulatorError):
    """A trace has the wrong columns, is not sorted by time, or is too long."""


class CannotWrite(SimulatorError):
    """A file of records cannot be written."""
