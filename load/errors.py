"""What can go wrong in load generation and simulation; each message stands on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class LoadError(Exception):
    """Root of this package's errors: an expected failure, told without a traceback."""


class TraceError(LoadError):
    """A trace cannot be had as asked."""


class InvalidTraceName(TraceError):
    """A trace's name has mistakes; `problems` holds all of them, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class TraceNotFound(TraceError):
    """No such file, or nothing matches the pattern."""


class UnreadableTrace(TraceError):
    """The file cannot be read: a folder, damaged or cut compression, not text, no rights."""


class UnknownFormat(TraceError):
    """The columns are those of no known format, or not of the one that was named."""


class InvalidTrace(TraceError):
    """A row holds what it must not; `file` and `row` say where."""

    def __init__(self, file: str, row: int, problem: str) -> None:
        super().__init__(f"{file}, row {row}: {problem}")
        self.file = file
        self.row = row


class UnsortedTrace(InvalidTrace):
    """A row is earlier than those before it by more than the window that is put right."""


class UnknownModel(TraceError):
    """An arrival names a model that was not declared, or that a table does not list."""


class UndeclaredModels(UnknownModel):
    """Arrivals name models that were not declared; `models` has all of them, `tenant/model`."""

    def __init__(self, problem: str, models: Sequence[str]) -> None:
        super().__init__(problem)
        self.models = list(models)
