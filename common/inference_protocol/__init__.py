"""The Open Inference Protocol (V2): datatypes, tensors, and their JSON, binary and gRPC forms.

Here: the root of the errors that a pod answers with, and those of bodies that cannot be read.
"""

import re
from typing import ClassVar


class PodError(Exception):
    """Root of the errors that a pod answers with."""

    refusal: ClassVar[str | None] = None
    """The value of `x-pilotlight-not-executed`; None if the request may have been executed."""
    retry_after_s: float | None = None
    label: ClassVar[str] = "error"
    """The class's name in the header `x-pilotlight-error`, such as `load-failed`."""

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def __init_subclass__(cls) -> None:
        cls.label = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


class InvalidRequest(PodError):
    """The request's body or headers are invalid."""


class BodyTooLarge(PodError):
    """The body exceeds the pod's limit."""
