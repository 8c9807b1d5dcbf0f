"""What a workflow's code may see go wrong."""

from __future__ import annotations


class StepFailed(Exception):
    """A model's call failed; a workflow may catch it and go on.

    `reason` is one of a closed set, `status` the HTTP status that the run ends with if nobody
    catches it.
    """

    def __init__(self, message: str, reason: str = "step-failed", status: int = 502) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


class NoRunError(RuntimeError):
    """A model was called outside of a run."""


class RunStuck(BaseException):
    """Raised inside a run that kept its runner busy for too long."""
