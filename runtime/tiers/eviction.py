"""Eviction policies: which idle models to evict when a new one needs memory.

Pure. Each policy orders the idle models; no more of them are evicted than necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Candidate:
    """An idle model."""

    key: str
    memory_bytes: int
    last_used: int
    """Position in the order of use; a larger one is more recent."""
    uses: int = 1
    """Requests served since it was loaded."""
    reload_s: float = 1.0
    """Expected time to load it again from the tier that it would be in."""
    clock: float = 0.0
    """The policy's clock at its last use."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Models to evict, in the order of the policy, and the policy's clock afterwards."""

    keys: tuple[str, ...]
    clock: float


EvictionPolicy = Callable[[Sequence[Candidate], int, float], Victims | None]
"""(idle models, bytes needed, clock) to victims; None if all together are not enough."""


def lru(candidates: Sequence[Candidate], needed_bytes: int, clock: float = 0.0) -> Victims | None:
    """Least recently used first."""
    chosen = _fewest(candidates, needed_bytes, lambda each: each.last_used)
    return None if chosen is None else Victims(tuple(each.key for each in chosen), clock)


def greedy_dual(candidates: Sequence[Candidate], needed_bytes: int, clock: float) -> Victims | None:
    """Lowest priority first: rarely used, cheap to load again, large, long unused.

    Fuerst and Sharma 2021, "FaasCache: keeping serverless computing alive with greedy-dual
    caching", section 4.1: priority = clock + frequency * cost / size, with the clock at the model's
    last use; an eviction sets the clock to the largest evicted priority.
    """
    chosen = _fewest(candidates, needed_bytes, _priority)
    if chosen is None:
        return None
    return Victims(
        tuple(each.key for each in chosen), max([clock, *(_priority(each) for each in chosen)])
    )


POLICIES: Final[Mapping[str, EvictionPolicy]] = {"lru": lru, "greedy-dual": greedy_dual}


def _priority(candidate: Candidate) -> float:
    return candidate.clock + candidate.uses * candidate.reload_s / max(1, candidate.memory_bytes)


def _fewest(
    candidates: Sequence[Candidate], needed_bytes: int, rank: Callable[[Candidate], float]
) -> list[Candidate] | None:
    """The lowest ranked that free enough, less those that are not necessary, highest rank first.

    Ties are broken by recency, then by name.
    """
    chosen: list[Candidate] = []
    freed = 0
    for candidate in sorted(candidates, key=lambda each: (rank(each), each.last_used, each.key)):
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
    return chosen
