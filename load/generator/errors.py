"""Errors before and during a run; failures of single requests are recorded, not raised."""

from __future__ import annotations

from load.errors import LoadError


class GeneratorError(LoadError):
    """Root; a message says what was wrong and what to do."""


class UnplayableTrace(GeneratorError):
    """The trace has no requests to send."""


class BadPayload(GeneratorError):
    """A `--payload` is not usable content."""


class BadTarget(GeneratorError):
    """The URL, or the host header of a request, is invalid."""


class TargetUnreachable(GeneratorError):
    """No server responds at the URL."""


class OutputNotReplaceable(GeneratorError):
    """The output file exists, or cannot be written."""


class RecordsNotWritten(GeneratorError):
    """The output can no longer be written, such as on a full disk."""


class WorkerFailed(GeneratorError):
    """A process of the generator ended early."""
