"""Which models leave the device when a new one needs room: interchangeable rules.

Pure: the store asks one and carries the answer out. Each rule orders the idle models; no more of
them leave than are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model on the device that nobody uses now."""

    key: str
    memory_bytes: int
    last_used: int
    """Position in the order of use; larger is more recent."""
    uses: int = 1
    """Requests it has served since it came."""
    reload_s: float = 1.0
    """Expected time to bring it back from where it goes."""
    clock: float = 0.0
    """The rule's clock when it was last used."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Models to evict, in the order of the rule, and the rule's clock from then on."""

    keys: tuple[str, ...]
    clock: float


EvictionPolicy = Callable[[Sequence[Candidate], int, float], Victims | None]
"""Idle models, bytes needed and the clock to victims; None where all are not enough."""


def lru(candidates: Sequence[Candidate], needed_bytes: int, clock: float = 0.0) -> Victims | None:
    """Least recently used first."""
    chosen = _fewest(candidates, needed_bytes, lambda each: each.last_used)
    return None if chosen is None else Victims(tuple(each.key for each in chosen), clock)


def greedy_dual(candidates: Sequence[Candidate], needed_bytes: int, clock: float) -> Victims | None:
    """Least worth keeping first: seldom used, cheap to bring back, large, long unused.

    Fuerst and Sharma 2021, "FaasCache: keeping serverless computing alive with greedy-dual
    caching", section 4.1: priority = clock + frequency * cost / size, the clock as it was when the
    model was last used; after an eviction the clock is the largest priority that was evicted.
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
    """The lowest ranked that free enough, without those that need not go after all.

    Ties go by recency, then by name. Those ranked highest are spared first.
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
