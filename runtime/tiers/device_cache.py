"""The models on a device as bookkeeping: a budget in bytes, who uses what, who leaves for whom.

Pure, shared with the simulator: the clock is an argument, no tasks, no device. Never a model in
use or pinned leaves, and which of the others do is a rule of `eviction`.
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
    """A model on the device. Mutable: its users are counted."""

    key: str
    """Which generation of which model."""
    memory_bytes: int
    users: int = 0
    uses: int = 0
    clock: float = 0.0
    """The rule's clock when it was last used."""
    last_used: int = 0

    @property
    def is_pinned(self) -> bool:
        """Whether it stays however long it is idle."""
        return False


R = TypeVar("R", bound=CachedModel)


class DeviceCache(Generic[R]):
    """What is on the device, what room is set aside, and the order of use."""

    def __init__(
        self,
        budget_bytes: int,
        *,
        policy: EvictionPolicy = lru,
        reload_s: Callable[[str, int], float] = lambda _key, _bytes: 1.0,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """An empty device; `reload_s` is the expected time to bring a model of some size back."""
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
        """Memory of all models on the device."""
        return sum(entry.memory_bytes for entry in self.by_key.values())

    @property
    def reserved_bytes(self) -> int:
        """Room set aside for models on their way."""
        return sum(self._reserved.values())

    @property
    def idle_byte_s(self) -> float:
        """Bytes of models that nobody uses times the seconds they are there, up to now."""
        return self._idle.byte_s

    def use(self, entry: R, users: int = 1) -> None:
        """Keep a model there until as many `end_use`."""
        if entry.users == 0:
            self._idle.end(entry.memory_bytes)
        entry.users += users
        entry.uses += users
        self._mark(entry)
        entry.clock = self._clock

    def end_use(self, entry: R) -> None:
        """One user is done."""
        entry.users -= 1
        if entry.users == 0:
            self._idle.begin(entry.memory_bytes)
        self._mark(entry)

    def _mark(self, entry: R) -> None:
        """It is the one that was used last."""
        self._uses += 1
        entry.last_used = self._uses

    def reserve(self, key: str, memory_bytes: int) -> tuple[str, ...] | None:
        """Set room aside for a model; who must leave for it, None: it is not to be had."""
        free = self.budget_bytes - self.used_bytes - self.reserved_bytes
        victims = self.choose_victims(memory_bytes - free)
        if victims is not None:
            self._reserved[key] = memory_bytes
        return victims

    def choose_victims(self, needed_bytes: int) -> tuple[str, ...] | None:
        """The idle models to let go for so many bytes; None where all of them are too few."""
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
        """Give room back that no model took; False: none was set aside."""
        return self._reserved.pop(key, None) is not None

    def add(self, entry: R) -> None:
        """Put a loaded model, which nobody uses yet, into the room set aside for it."""
        self._reserved.pop(entry.key, None)
        self._mark(entry)
        entry.clock = self._clock
        self.by_key[entry.key] = entry
        self._idle.begin(entry.memory_bytes)

    def remove(self, key: str) -> R:
        """Take a model that nobody uses off the device."""
        entry = self.by_key.pop(key)
        self._idle.end(entry.memory_bytes)
        return entry
