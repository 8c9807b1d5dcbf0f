"""What can be wrong with the runs that a report is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ReportError(LoadError):
    """Root: the text says what was wrong and what to do."""


class BadRun(ReportError):
    """A file that is no run."""


class BadOutput(ReportError):
    """The report cannot be put where it was asked for."""


class BadRuns(ReportError):
    """Everything that is wrong with the files given, one line each in `problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)
