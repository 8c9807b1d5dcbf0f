"""Errors of a workflow's request with their HTTP status, and how a step fails."""

from http import HTTPStatus
from typing import Any


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


class StepError(Exception):
    """A step that failed for good; `reason` is of a closed set."""

    def __init__(self, message: str, reason: str, status: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status

    def as_json(self) -> dict[str, Any]:
        return {"message": str(self)[:1000], "reason": self.reason, "status": self.status}


class InputsLost(Exception):
    """A pod does not keep tensors any more: the steps that made them are to run again."""


class StepLost(Exception):
    """The step may be sent again: its pod or the gateway is gone, or has no room for it now.

    `was_sent`: it may have been the cause. `pause_s`: until then the gateway refuses it.
    """

    def __init__(self, message: str, *, was_sent: bool = True, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        self.pause_s = pause_s
