"""Errors of reports: runs that cannot be read, output that cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ReportError(LoadError):
    """Root of the report's errors; the message says what to do."""


class BadRun(ReportError):
    """A file is not a run."""


class BadOutput(ReportError):
    """The output folder cannot be created."""


class BadRuns(ReportError):
    """Everything that is wrong with the given files, one line each in `problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)
