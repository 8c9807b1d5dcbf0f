"""Targets of a benchmark, and whether its figures reach them."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """One target and what was measured."""

    promise: str
    seen: str
    is_reached: bool


def mark_lines(marks: Iterable[Mark]) -> str:
    """A Markdown list, one line per target."""
    return "\n".join(
        f"- {'reached' if mark.is_reached else 'MISSED'}: {mark.promise}: {mark.seen}"
        for mark in marks
    )
