"""One answer of `pilotlight doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

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


def ok(subject: str, detail: str) -> Finding:
    return Finding(Severity.OK, subject, detail)


def warning(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(Severity.WARNING, subject, detail, remedy)


def problem(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(Severity.PROBLEM, subject, detail, remedy)


def unknown(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(Severity.UNKNOWN, subject, detail, remedy)
