"""What on a cluster or on this machine would keep Pilotlight from working, and the way out."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

MIN_DRIVER: Final = 580
"""Of CUDA 13, which the locked torch and the image `runtime-cuda` have."""


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Works, but not as well, or not for everyone."""
    PROBLEM = "problem"
    """Does not work."""
    UNKNOWN = "unknown"
    """Could not be read."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    subject: str
    detail: str
    """What was found."""
    remedy: str = ""
    """What to do; empty: nothing."""


ok = partial(Finding, Severity.OK)
warning = partial(Finding, Severity.WARNING)
problem = partial(Finding, Severity.PROBLEM)
unknown = partial(Finding, Severity.UNKNOWN)
