"""How a workflow's request, and a step of a run, fails."""

from collections.abc import Mapping
from typing import Any, Final

STATUS: Final[Mapping[str, int]] = {
    "bad-request": 400,
    "bad-file": 400,
    "workflow-not-found": 404,
    "run-not-found": 404,
    "workflow-stopped": 409,
    "name-taken": 409,
    "body-too-large": 413,
    "too-many-runs": 429,
    "too-many-files": 429,
    "not-ready": 503,
    "runner-failed": 503,
}
"""HTTP status by the reasons of requests; steps have those of the gateway as well."""


class WorkflowError(Exception):
    """A request or a step that failed for good; `reason` is of a closed set."""

    def __init__(
        self, message: str, reason: str = "bad-request", status: int = 0, line: int | None = None
    ) -> None:
        """`line`: of the workflow's file."""
        super().__init__(message)
        self.reason = reason
        self.status = status or STATUS[reason]
        self.line = line

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
