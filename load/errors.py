"""Errors of load generation and simulation; every message is complete without its traceback."""

from collections.abc import Sequence


class LoadError(Exception):
    """Root of this package's errors: expected failures, shown without a traceback."""


class Mistakes(LoadError):
    """An input has mistakes; `problems` holds all of them, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class TraceError(LoadError):
    """A trace cannot be opened, read or simulated."""


class InvalidTraceSpec(Mistakes, TraceError):
    """A trace specification has mistakes."""


class UnreadableTrace(TraceError):
    """The file cannot be read: a folder, damaged or truncated, not text, no permission."""


class InvalidTrace(TraceError):
    """A row holds an invalid value; `file` and `row` locate it."""

    def __init__(self, file: str, row: int, problem: str) -> None:
        super().__init__(f"{file}, row {row}: {problem}")
        self.file = file
        self.row = row


class UndeclaredModels(TraceError):
    """Arrivals name models that were not declared; `models` has all of them, `tenant/model`."""

    def __init__(self, problem: str, models: Sequence[str]) -> None:
        super().__init__(problem)
        self.models = list(models)


class GeneratorError(LoadError):
    """A run of the generator cannot begin or go on; a request's own failure is recorded instead."""


class CredentialsRefused(GeneratorError):
    """The target shows none of the trace's models without another key or token."""


class RunFailed(GeneratorError):
    """No server responds, or records cannot be written, such as on a full disk."""


class WorkerFailed(RunFailed):
    """A process of the generator ended early."""


class ReportError(LoadError):
    """A file is not a run."""


class InvalidCluster(Mistakes):
    """A cluster file has mistakes."""


class CannotWrite(LoadError):
    """A file of records of a simulated run cannot be written."""
