"""The models on a device: byte budget, reservations, users, evictions, and waits for memory.

Pure, shared with the simulator. A model that is in use or pinned is never evicted; a policy of
`eviction` chooses among the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from common.sizes import shown_bytes
from registry.domain.model import name_of_key
from runtime.errors import ModelTooLarge
from runtime.tiers.eviction import Candidate, EvictionPolicy, lru

REVOCABLE: Final = ("unload", "withdrawn")
"""Reasons to remove a model that is only not wanted, and may be wanted again before its end."""


@dataclass(eq=False, slots=True)
class CachedModel:
    """A model on the device. Mutable: the cache counts its users."""

    key: str
    """Key of the model's generation."""
    memory_bytes: int
    users: int = 0
    uses: int = 0
    clock: float = 0.0
    """The policy's clock at its last use."""
    last_used: int = 0
    served: int = 0
    """Requests that have ended."""
    last_s: float = -inf
    """End of the last of them, on the cache's clock."""
    retire_reason: str | None = None
    """Why it is removed after its last use; None if it stays."""
    base: CachedModel | None = None
    """Of an adapter: in use while this is, and removed only together with it."""

    @property
    def is_pinned(self) -> bool:
        """Whether it is exempt from eviction."""
        return False

    @property
    def loads_by_size(self) -> bool:
        """Whether its load's time tells that of other models: the start of an engine does not."""
        return True


class Remainders(Protocol):
    """Memory of the device that models keep which sleep, and are on tier `host`."""

    def remainder_bytes(self, but: str = "") -> int:
        """Of all of them, or of all but one."""

    def end_sleepers(self, but: str) -> None:
        """End all but one, which frees what they keep."""


class IdleMemory:
    """Memory of a device's idle models over time, in bytes x seconds: the wasted memory-time.

    Never decreases. Exact: updated whenever a model becomes idle, is used or is removed.

    Source: Shahrad et al. 2020, "Serverless in the Wild", section 4.1, weighted by size.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Start without idle models; the clock must be monotonic."""
        self._now_s = now_s
        self._since_s = now_s()
        self._idle_bytes = 0
        self._byte_s = 0.0

    @property
    def byte_s(self) -> float:
        return self._byte_s + self._idle_bytes * (self._now_s() - self._since_s)

    def change(self, memory_bytes: int) -> None:
        """Record that a model of this size became idle; below 0: that one is used or removed."""
        now_s = self._now_s()
        self._byte_s += self._idle_bytes * (now_s - self._since_s)
        self._since_s = now_s
        self._idle_bytes += memory_bytes


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
        on_removed: Callable[[R, str, str | None], None] = lambda _entry, _reason, _for: None,
        quota_of: Callable[[str], int | None] = lambda _namespace: None,
        remainders: Remainders | None = None,
    ) -> None:
        """An empty device.

        Args:
            budget_bytes: for all models together.
            policy: chooses the models to evict.
            reload_s: (key, bytes) to the expected time to load the model again after an eviction.
            now_s: a monotonic clock.
            on_removed: called after the removal of a model, with the reason and the key of the
                model that needs its memory, None for other removals.
            quota_of: bytes that the models of a namespace may take together; None: any.
            remainders: what models that sleep keep of the device; None: they keep nothing.
        """
        self._remainders = remainders
        self._quota_of = quota_of
        self.budget_bytes = budget_bytes
        self.by_key: dict[str, R] = {}
        self._policy = policy
        self.reload_s = reload_s
        self._on_removed = on_removed
        self._now_s = now_s
        self._clock = 0.0
        self._reserved: dict[str, int] = {}
        self._uses = 0
        self._idle = IdleMemory(now_s)
        self._waits: dict[Callable[[], bool], Callable[[], None]] = {}
        """Of loads, until others release memory: the condition, and what to call then."""

    @property
    def used_bytes(self) -> int:
        return sum(entry.memory_bytes for entry in self.by_key.values())

    @property
    def reserved_bytes(self) -> int:
        return sum(self._reserved.values())

    @property
    def free_bytes(self) -> int:
        """What neither models nor loads have of the budget."""
        kept = self._remainders.remainder_bytes() if self._remainders else 0
        return self.budget_bytes - self.used_bytes - self.reserved_bytes - kept

    @property
    def idle_byte_s(self) -> float:
        """Bytes of idle models times seconds, up to now."""
        return self._idle.byte_s

    # Use

    def use(self, entry: R, users: int = 1) -> None:
        """Protect a model from eviction until each of the users has called `end_use`."""
        if entry.users == 0:
            self._idle.change(-entry.memory_bytes)
        entry.users += users
        entry.uses += users
        self._uses += 1
        entry.last_used = self._uses
        entry.clock = self._clock
        if entry.base is not None:
            self.use(entry.base, users)  # type: ignore[arg-type]  # of the same kind

    def end_use(self, entry: R) -> None:
        """End one use; after the last one a retired model is removed, and waiting loads retry."""
        entry.users -= 1
        self._uses += 1
        entry.last_used = self._uses
        if entry.users == 0:
            self._idle.change(entry.memory_bytes)
            if entry.retire_reason is not None:
                self._remove(entry, entry.retire_reason)
            if self._waits:
                self.notify_freed()
        if entry.base is not None:
            self.end_use(entry.base)  # type: ignore[arg-type]  # of the same kind

    def end_request(self, entry: R) -> None:
        """End a request's use; the uses of loads, which only protect the model, are not counted."""
        entry.served += 1
        entry.last_s = self._now_s()
        self.end_use(entry)

    # Memory

    def check_fits(self, key: str, memory_bytes: int) -> None:
        """Raise ModelTooLarge if the model exceeds the whole budget, or its namespace's quota."""
        quota = self._quota_of(name_of_key(key).namespace)
        if quota is not None and memory_bytes > quota:
            raise ModelTooLarge(
                f"{name_of_key(key)} needs {shown_bytes(memory_bytes)}, its namespace's quota of"
                f" memory is {shown_bytes(quota)}: raise quotas in the"
                " tenant's ConfigMap, or --quotas of `pilotlight up`"
            )
        if memory_bytes > self.budget_bytes:
            raise ModelTooLarge(
                f"{name_of_key(key)} needs {shown_bytes(memory_bytes)}, the pod's memory budget is"
                f" {shown_bytes(self.budget_bytes)}: raise the pod's --memory-bytes, or"
                " --pod-memory of `pilotlight up`"
            )

    def try_reserve(self, key: str, memory_bytes: int) -> bool:
        """Reserve memory, evicting idle models if necessary; False if too few are idle.

        A namespace at its quota evicts its own models first. Models that sleep are ended where idle
        ones do not suffice.
        """
        if self._try_reserve(key, memory_bytes):
            return True
        if self._remainders is None or not self._remainders.remainder_bytes(key):
            return False
        self._remainders.end_sleepers(key)
        return self._try_reserve(key, memory_bytes)

    def _try_reserve(self, key: str, memory_bytes: int) -> bool:
        free = self.free_bytes
        if self._remainders is not None:  # its own is a part of what it needs
            free += self._remainders.remainder_bytes() - self._remainders.remainder_bytes(key)
        own_keys = self._choose_for_quota(key, memory_bytes)
        if own_keys is None:
            return False
        free += sum(self.by_key[own_key].memory_bytes for own_key in own_keys)
        chosen_keys = self.choose_evictions(memory_bytes - free, lambda each: each not in own_keys)
        if chosen_keys is None:
            return False
        self._reserved[key] = memory_bytes
        self._remove_all((*own_keys, *chosen_keys), "memory", key)
        return True

    def _choose_for_quota(self, key: str, memory_bytes: int) -> tuple[str, ...] | None:
        """The idle models of its namespace to evict for its quota; None if they do not suffice."""
        namespace = name_of_key(key).namespace
        quota = self._quota_of(namespace)
        if quota is None:
            return ()

        def is_own(other: str) -> bool:
            return name_of_key(other).namespace == namespace

        used = sum(each.memory_bytes for each in self.by_key.values() if is_own(each.key))
        reserved = sum(size for other, size in self._reserved.items() if is_own(other))
        return self.choose_evictions(used + reserved + memory_bytes - quota, is_own)

    def evict_idle(self, missing_bytes: int, evicted_for: str) -> bool:
        """Evict idle models, since the device has less memory than the budget; False without any.

        As many as make up for the missing bytes, or all of them if they do not suffice: other
        processes may take memory of the device.
        """
        idle_bytes = sum(
            each.memory_bytes
            for each in self.by_key.values()
            if each.users == 0 and not each.is_pinned
        )
        chosen_keys = self.choose_evictions(min(max(1, missing_bytes), idle_bytes))
        self._remove_all(chosen_keys or (), "device-full", evicted_for)
        if chosen_keys:
            self.notify_freed()
        return bool(chosen_keys)

    def call_when(self, condition: Callable[[], bool], done: Callable[[], None]) -> None:
        """Call `done` once the condition holds: now, or when memory was freed, in order."""
        if condition():
            done()
        else:
            self._waits[condition] = done

    def stop_waiting(self, condition: Callable[[], bool]) -> None:
        self._waits.pop(condition, None)

    def notify_freed(self) -> None:
        """Let waiting loads try again."""
        for condition in tuple(self._waits):
            if condition in self._waits and condition():
                self._waits.pop(condition)()

    def choose_evictions(
        self, needed_bytes: int, is_candidate: Callable[[str], bool] = lambda _key: True
    ) -> tuple[str, ...] | None:
        """The idle models to evict to free `needed_bytes`; None if all of them do not suffice."""
        if needed_bytes <= 0:
            return ()
        idle = [
            Candidate(
                entry.key,
                entry.memory_bytes,
                entry.last_used,
                uses=max(1, entry.uses),
                reload_s=self.reload_s(entry.key, entry.memory_bytes),
                clock=entry.clock,
            )
            for entry in self.by_key.values()
            if entry.users == 0 and not entry.is_pinned and is_candidate(entry.key)
        ]
        chosen = self._policy(idle, needed_bytes, self._clock)
        if chosen is None:
            return None
        self._clock = chosen.clock
        return chosen.keys

    def cancel_reservation(self, key: str) -> None:
        """Free memory reserved for a model that was not added, if there is a reservation."""
        if self._reserved.pop(key, None) is not None:
            self.notify_freed()

    # Models

    def add(self, entry: R) -> None:
        """Add a loaded, idle model in place of its reservation."""
        self._reserved.pop(entry.key, None)
        self._uses += 1
        entry.last_used = self._uses
        entry.clock = self._clock
        self.by_key[entry.key] = entry
        self._idle.change(entry.memory_bytes)

    def retire(self, key: str, reason: str) -> bool:
        """Remove a model, at once or after its last use; False if it is not there."""
        entry = self.by_key.get(key)
        if entry is None:
            return False
        if entry.users:
            if entry.retire_reason in (None, *REVOCABLE):
                entry.retire_reason = reason
            return True
        self._remove(entry, reason)
        self.notify_freed()
        return True

    def keep(self, key: str, reason: str) -> None:
        """Let a model in use stay that was to be removed for a revocable reason."""
        entry = self.by_key.get(key)
        if entry is not None and entry.retire_reason == reason and reason in REVOCABLE:
            entry.retire_reason = None

    def _remove_all(self, keys: Sequence[str], reason: str, evicted_for: str) -> None:
        for key in keys:
            if (entry := self.by_key.get(key)) is not None:  # it may have left with another
                self._remove(entry, reason, evicted_for)

    def _remove(self, entry: R, reason: str, evicted_for: str | None = None) -> None:
        del self.by_key[entry.key]
        self._idle.change(-entry.memory_bytes)
        self._on_removed(entry, reason, evicted_for)
