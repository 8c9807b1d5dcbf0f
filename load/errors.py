"""Errors of load generation and simulation; every message is complete without its traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class LoadError(Exception):
    """Root of this package's errors: expected failures, shown without a traceback."""


class TraceError(LoadError):
    """A trace cannot be opened or read."""


class InvalidTraceSpec(TraceError):
    """A trace specification has mistakes; `problems` holds all of them, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class TraceNotFound(TraceError):
    """No such file, or no file matches the pattern."""


class UnreadableTrace(TraceError):
    """The file cannot be read: a folder, damaged or truncated, not text, no permission."""


class UnknownFormat(TraceError):
    """The columns fit no known format, or not the format that was named."""


class InvalidTrace(TraceError):
    """A row holds an invalid value; `file` and `row` locate it."""

    def __init__(self, file: str, row: int, problem: str) -> None:
        super().__init__(f"{file}, row {row}: {problem}")
        self.file = file
        self.row = row


class UnsortedTrace(InvalidTrace):
    """A row is earlier than a row above it by more than the window in which rows are sorted."""


class UnknownModel(TraceError):
    """An arrival names a model that was not declared, or that a table does not list."""


class UndeclaredModels(UnknownModel):
    """Arrivals name models that were not declared; `models` has all of them, `tenant/model`."""

    def __init__(self, problem: str, models: Sequence[str]) -> None:
        super().__init__(problem)
        self.models = list(models)
