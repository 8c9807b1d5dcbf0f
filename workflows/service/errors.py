"""Errors of a workflow's request, and their HTTP status."""

from __future__ import annotations

from http import HTTPStatus


class WorkflowError(Exception):
    """Root; the response is `{"error": message, "reason": reason}`."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    reason = "internal"

    def __init_subclass__(cls, status: int | None = None, reason: str = "") -> None:
        if status is not None:
            cls.status, cls.reason = HTTPStatus(status), reason

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        """Of the workflow's file."""


class BadRequest(WorkflowError, status=400, reason="bad-request"):
    """A body, header or name is malformed."""


class BadFile(WorkflowError, status=400, reason="bad-file"):
    """A file that cannot be loaded, or defines no workflow."""


class UnknownWorkflow(WorkflowError, status=404, reason="workflow-not-found"):
    """No workflow of this name is deployed in the namespace."""


class UnknownRun(WorkflowError, status=404, reason="run-not-found"):
    """The run does not exist, or ended too long ago."""


class WorkflowStopped(WorkflowError, status=409, reason="workflow-stopped"):
    """The workflow's file killed its runner twice; deploy it again."""


class NameTaken(WorkflowError, status=409, reason="name-taken"):
    """The name is that of an InferenceGraph."""


class TooManyRuns(WorkflowError, status=429, reason="too-many-runs"):
    """The scheduler executes as many runs as it may."""


class TooManyFiles(WorkflowError, status=429, reason="too-many-files"):
    """As many files as may wait to be checked do so."""


class TooLarge(WorkflowError, status=413, reason="body-too-large"):
    """A body over the limit."""


class NotReady(WorkflowError, status=503, reason="not-ready"):
    """The registry cannot be reached, or was not read yet."""


class RunnerFailed(WorkflowError, status=503, reason="runner-failed"):
    """No runner could be started, or it ended."""
