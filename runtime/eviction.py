"""Which models leave the device when a new one needs room: the least recently used, and no more.

Pure: the store asks it and carries the answer out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model on the device that nobody uses now."""

    key: str
    memory_bytes: int
    last_used: int
    """Position in the order of use; larger is more recent."""


def choose_victims(candidates: Sequence[Candidate], needed_bytes: int) -> tuple[str, ...] | None:
    """Models to evict so that `needed_bytes` come free; None where all together are not enough.

    Least recently used first; then those are spared, the most recently used first, without which
    there is still enough.
    """
    if needed_bytes <= 0:
        return ()
    chosen: list[Candidate] = []
    freed = 0
    for candidate in sorted(candidates, key=lambda each: (each.last_used, each.key)):
        if freed >= needed_bytes:
            break
        chosen.append(candidate)
        freed += candidate.memory_bytes
    if freed < needed_bytes:
        return None
    for candidate in reversed(tuple(chosen)):
        if freed - candidate.memory_bytes >= needed_bytes:
            chosen.remove(candidate)
            freed -= candidate.memory_bytes
    return tuple(candidate.key for candidate in chosen)
