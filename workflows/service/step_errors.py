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


class InputsLost(Exception):
    """Kept tensors that the step takes are gone: the steps that made them are to run again."""

    def __init__(self, message: str, identities: frozenset[str]) -> None:
        super().__init__(message)
        self.identities = identities
        """Those that are lost; from a pod's refusal all that were sent to it."""


class StepLost(Exception):
    """The step may be sent again: its pod or the gateway is gone, or has no room for it now.

    `was_sent`: it may have been the cause. `pause_s`: until then the gateway refuses it.
    """

    def __init__(self, message: str, *, was_sent: bool = True, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        self.pause_s = pause_s
