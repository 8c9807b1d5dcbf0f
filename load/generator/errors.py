"""What can go wrong before or while a trace is played; single requests never raise, they record."""

from __future__ import annotations

from load.errors import LoadError


class GeneratorError(LoadError):
    """Root: the text says what was wrong and what to do."""


class UnplayableTrace(GeneratorError):
    """The trace holds nothing to send."""


class BadPayload(GeneratorError):
    """A `--payload` names no usable content."""


class BadTarget(GeneratorError):
    """The URL, or what was asked of it, is wrong."""


class TargetUnreachable(GeneratorError):
    """Nobody answers at the URL."""


class OutputInTheWay(GeneratorError):
    """The output file exists already, or cannot be written."""


class RecordsNotWritten(GeneratorError):
    """The output cannot be written any more, such as on a full disk."""


class WorkerFailed(GeneratorError):
    """A process of the generator ended before its time."""
