"""How a step fails: for good, or so that it may be sent again."""

from __future__ import annotations

from typing import Any


class StepError(Exception):
    """A step that failed for good; `reason` is of a closed set."""

    def __init__(self, message: str, reason: str, status: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status

    def as_json(self) -> dict[str, Any]:
        return {"message": str(self)[:1000], "reason": self.reason, "status": self.status}


class StepLost(Exception):
    """The step may be sent again: its pod or the gateway is gone, or models in use fill the pod.

    `was_sent`: it may have been the cause.
    """

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
