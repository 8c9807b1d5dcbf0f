"""Bookkeeping of the models on a device: byte budget, reservations, users and evictions.

Pure, shared with the simulator. A model that is in use or pinned is never evicted; a policy of
`eviction` chooses among the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from runtime.tiers.eviction import Candidate, EvictionPolicy, lru
from runtime.tiers.idle_memory import IdleMemory

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(eq=False, slots=True)
class CachedModel:
    """A model on the device. Mutable: the cache counts its users."""

    key: str
    """Of the model's generation."""
    memory_bytes: int
    users: int = 0
    uses: int = 0
    clock: float = 0.0
    """The policy's clock at its last use."""
    last_used: int = 0

    @property
    def is_pinned(self) -> bool:
        """Whether it is exempt from eviction."""
        return False


R = TypeVar("R", bound=CachedModel)


class DeviceCache(Generic[R]):
    """The models on a device, reservations for others, and the order of use."""

    def __init__(
        self,
        budget_bytes: int,
        *,
        policy: EvictionPolicy = lru,
        reload_s: Callable[[str, int], float] = lambda _key, _bytes: 1.0,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """An empty device.

        Args:
            budget_bytes: for all models together.
            policy: chooses the models to evict.
            reload_s: (key, bytes) to the expected time to load the model again after an eviction.
            now_s: a monotonic clock.
        """
        self.budget_bytes = budget_bytes
        self.by_key: dict[str, R] = {}
        self._policy = policy
        self._reload_s = reload_s
        self._clock = 0.0
        self._reserved: dict[str, int] = {}
        self._uses = 0
        self._idle = IdleMemory(now_s)

    @property
    def used_bytes(self) -> int:
        return sum(entry.memory_bytes for entry in self.by_key.values())

    @property
    def reserved_bytes(self) -> int:
        return sum(self._reserved.values())

    @property
    def idle_byte_s(self) -> float:
        """Bytes of idle models times seconds, up to now."""
        return self._idle.byte_s

    def use(self, entry: R, users: int = 1) -> None:
        """Protect a model from eviction until each of the users has called `end_use`."""
        if entry.users == 0:
            self._idle.end(entry.memory_bytes)
        entry.users += users
        entry.uses += users
        self._mark(entry)
        entry.clock = self._clock

    def end_use(self, entry: R) -> None:
        entry.users -= 1
        if entry.users == 0:
            self._idle.begin(entry.memory_bytes)
        self._mark(entry)

    def _mark(self, entry: R) -> None:
        self._uses += 1
        entry.last_used = self._uses

    def reserve(self, key: str, memory_bytes: int) -> tuple[str, ...] | None:
        """Reserve memory; returns the models to evict first, None if too few are idle."""
        free = self.budget_bytes - self.used_bytes - self.reserved_bytes
        victims = self.choose_victims(memory_bytes - free)
        if victims is not None:
            self._reserved[key] = memory_bytes
        return victims

    def choose_victims(self, needed_bytes: int) -> tuple[str, ...] | None:
        """The idle models to evict for so many bytes; None if all together are not enough."""
        if needed_bytes <= 0:
            return ()
        idle = [
            Candidate(
                entry.key,
                entry.memory_bytes,
                entry.last_used,
                uses=max(1, entry.uses),
                reload_s=self._reload_s(entry.key, entry.memory_bytes),
                clock=entry.clock,
            )
            for entry in self.by_key.values()
            if entry.users == 0 and not entry.is_pinned
        ]
        chosen = self._policy(idle, needed_bytes, self._clock)
        if chosen is None:
            return None
        self._clock = chosen.clock
        return chosen.keys

    def cancel_reservation(self, key: str) -> bool:
        """Free memory reserved for a model that was not added; False without a reservation."""
        return self._reserved.pop(key, None) is not None

    def add(self, entry: R) -> None:
        """Add a loaded, idle model in place of its reservation."""
        self._reserved.pop(entry.key, None)
        self._mark(entry)
        entry.clock = self._clock
        self.by_key[entry.key] = entry
        self._idle.begin(entry.memory_bytes)

    def remove(self, key: str) -> R:
        entry = self.by_key.pop(key)
        self._idle.end(entry.memory_bytes)
        return entry
