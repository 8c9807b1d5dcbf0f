"""What can go wrong when a cluster is described or simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.errors import LoadError, TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class InvalidCluster(LoadError):
    """A cluster file has mistakes; `problems` holds all of them, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class WrongTrace(TraceError):
    """A trace has other columns than `TRACE_SCHEMA`, or goes back in time."""
