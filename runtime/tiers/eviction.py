"""Eviction policies: which idle models to evict when a new one needs memory; reload times. Pure.

A policy orders the idle models; no more of them are evicted than necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from registry.domain.model import Tier

PRIOR_BYTES_PER_S: Final = {Tier.HOST: 10e9, Tier.DISK: 2e9, Tier.REMOTE: 1e8}
"""Assumed before the first load: mapped memory, a disk with a warm page cache, object storage."""
FIXED_S: Final = 0.02
"""Time of a load in addition to reading the bytes."""
NEWEST_SHARE: Final = 0.3
"""Weight of the newest rate in the running average."""


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
    """Expected time to load it again, from its tier after eviction."""
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
    """The lowest-ranked models that free enough, without those that turn out not to be needed.

    The last model chosen may make earlier ones unnecessary: these are dropped, the highest-ranked
    first. Ties are broken by recency, then by name.
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


def tier_after_eviction(
    size_bytes: int, *, host_bytes: int, host_budget_bytes: int, is_on_disk: bool
) -> Tier:
    """The tier of a model after eviction; `host_bytes`: its bytes already in tier `host`."""
    if host_bytes or 0 < size_bytes <= host_budget_bytes:
        return Tier.HOST
    return Tier.DISK if is_on_disk else Tier.REMOTE


class ReloadCosts:
    """Expected time to load a model again, from the past loads of this pod.

    For a model that was never loaded from a tier, the estimate follows from the model's size and
    the tier's average rate.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, Tier], float] = {}
        self._rates = dict(PRIOR_BYTES_PER_S)

    def observe(self, key: str, tier: Tier, size_bytes: int | None, seconds: float) -> None:
        """`size_bytes`: None where the time says nothing about other models."""
        self._seconds[key, tier] = seconds
        if size_bytes is None:
            return
        rate = size_bytes / max(1e-3, seconds - FIXED_S)
        self._rates[tier] += NEWEST_SHARE * (rate - self._rates[tier])

    def estimate_s(self, key: str, tier: Tier, size_bytes: int) -> float:
        measured = self._seconds.get((key, tier))
        return measured if measured is not None else FIXED_S + size_bytes / self._rates[tier]

    def forget(self, key: str) -> None:
        for observed in [observed for observed in self._seconds if observed[0] == key]:
            del self._seconds[observed]
