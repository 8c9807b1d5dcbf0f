"""What can go wrong when load is described, made or simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class LoadError(Exception):
    """Root of this package's errors; the text tells the user what to do."""


class InvalidCluster(LoadError):
    """A cluster file has mistakes; `problems` holds all of them, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class InvalidTrace(LoadError):
    """A trace cannot be read, is out of order, or names what is not there."""
