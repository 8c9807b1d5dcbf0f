"""The models on the device: waits for memory, evictions and removals.

`device_cache` does the bookkeeping (budget, users, choice of evictions). All methods belong to the
event loop and none blocks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.errors import MemoryBusy, ModelTooLarge
from runtime.metrics import EVICTIONS, TIER_BYTES
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import EvictionPolicy, lru

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.model import ModelSpec
    from runtime.loading.served_model import ServedModel

logger = logging.getLogger(__name__)

MEMORY_TIMEOUT_S = 30.0
"""How long a load waits until requests release memory."""


@dataclass(eq=False, slots=True)
class StoreEntry(CachedModel):
    """A model on the device and its removal."""

    model: ServedModel = field(kw_only=True)
    free: Callable[[], None] = field(kw_only=True)
    """Frees its memory."""
    retire_reason: str | None = None
    """Why the model is removed after its last use; None if it stays."""

    @property
    def is_pinned(self) -> bool:
        """Whether its annotations exempt it from eviction."""
        return self.model.spec.policy.pin


@dataclass(frozen=True, slots=True)
class Eviction:
    """A model that was removed from the device."""

    spec: ModelSpec
    freed_bytes: int
    reason: str
    evicted_for: str | None
    """The model that needed the memory; None for other removals."""


class ModelStore:
    """The models on the device, within a byte budget."""

    def __init__(
        self,
        budget_bytes: int,
        on_evicted: Callable[[Eviction], None],
        *,
        policy: EvictionPolicy = lru,
        reload_s: Callable[[str, int], float] = lambda _key, _bytes: 1.0,
    ) -> None:
        """An empty store.

        Args:
            budget_bytes: for all models together.
            on_evicted: called after the removal of a model.
            policy: chooses the models to evict.
            reload_s: (key, bytes) to the expected time to load the model again after an eviction.
        """
        self.budget_bytes = budget_bytes
        self._on_evicted = on_evicted
        self._reload_s = reload_s
        self._on_device: DeviceCache[StoreEntry] = DeviceCache(
            budget_bytes, policy=policy, reload_s=reload_s, now_s=time.monotonic
        )
        self._freed = asyncio.Condition()

    # Use

    def acquire(self, key: str, users: int = 1) -> StoreEntry | None:
        """The model, if it can infer, kept on the device until each user has called `release`."""
        entry = self._on_device.by_key.get(key)
        if entry is None or entry.model.is_broken:
            return None
        entry.retire_reason = None  # in use again before its removal
        self._on_device.use(entry, users)
        return entry

    def broken_reason(self, key: str) -> str | None:
        """Why the model on the device cannot infer; None if it can, or is not there."""
        entry = self._on_device.by_key.get(key)
        return entry.model.device_model.broken_reason if entry is not None else None

    async def release(self, entry: StoreEntry) -> None:
        """End one use; removes a retired model after its last one."""
        self._on_device.end_use(entry)
        if entry.users == 0:
            if entry.retire_reason is not None:
                self._remove(entry, entry.retire_reason)
            await self._notify_freed()

    def holds(self, key: str) -> bool:
        """Whether the model is on the device, also if it cannot infer."""
        return key in self._on_device.by_key

    def model_keys(self) -> tuple[str, ...]:
        return tuple(self._on_device.by_key)

    def bytes_of(self, key: str) -> int:
        """Memory of a model on the device; 0 if it is not there."""
        entry = self._on_device.by_key.get(key)
        return entry.memory_bytes if entry else 0

    @property
    def used_bytes(self) -> int:
        return self._on_device.used_bytes

    @property
    def idle_byte_s(self) -> float:
        """Bytes of idle models times seconds, up to now."""
        return self._on_device.idle_byte_s

    # Memory

    @property
    def reserved_bytes(self) -> int:
        return self._on_device.reserved_bytes

    async def reserve(self, key: str, memory_bytes: int) -> None:
        """Reserve memory, evicting others if necessary; raises MemoryBusy, ModelTooLarge."""
        self.check_fits(key, memory_bytes)
        try:
            async with asyncio.timeout(MEMORY_TIMEOUT_S), self._freed:
                await self._freed.wait_for(lambda: self._try_reserve(key, memory_bytes))
        except TimeoutError as error:
            raise MemoryBusy(
                f"{key} needs {memory_bytes} bytes; models in use occupy the pod's memory"
            ) from error

    def check_fits(self, key: str, memory_bytes: int) -> None:
        """Raise ModelTooLarge if the model exceeds the whole budget."""
        if memory_bytes > self.budget_bytes:
            raise ModelTooLarge(
                f"{key} needs {memory_bytes} bytes, the pod's memory budget is"
                f" {self.budget_bytes} bytes"
            )

    def _try_reserve(self, key: str, memory_bytes: int) -> bool:
        return self._evict(self._on_device.reserve(key, memory_bytes), "memory", key)

    async def evict_one(self, evicted_for: str) -> bool:
        """Evict the next idle model, since the device has less memory than the budget."""
        was_evicted = self._evict(self._on_device.choose_victims(1), "device-full", evicted_for)
        if was_evicted:
            await self._notify_freed()
        return was_evicted

    def _evict(self, victims: tuple[str, ...] | None, reason: str, evicted_for: str) -> bool:
        for key in victims or ():
            self._remove(self._on_device.by_key[key], reason, evicted_for)
        return victims is not None

    async def cancel_reservation(self, key: str) -> None:
        """Free reserved memory for which no model was added."""
        if self._on_device.cancel_reservation(key):
            await self._notify_freed()

    def add(
        self,
        model: ServedModel,
        memory_bytes: int,
        free: Callable[[], None] = lambda: None,
    ) -> StoreEntry:
        """Add a loaded model in place of its reservation; `free` frees its memory."""
        entry = StoreEntry(model.spec.key, memory_bytes, model=model, free=free)
        self._on_device.add(entry)
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        return entry

    async def _notify_freed(self) -> None:
        async with self._freed:
            self._freed.notify_all()

    # Removal

    async def retire(self, key: str, reason: str) -> bool:
        """Remove a model, at once or after its last use; False if it is not there."""
        entry = self._on_device.by_key.get(key)
        if entry is None:
            return False
        if entry.users:
            entry.retire_reason = reason
            return True
        self._remove(entry, reason)
        await self._notify_freed()
        return True

    async def wait_removed(self, key: str) -> None:
        async with self._freed:
            await self._freed.wait_for(lambda: key not in self._on_device.by_key)

    def _remove(self, entry: StoreEntry, reason: str, evicted_for: str | None = None) -> None:
        key, spec = entry.key, entry.model.spec
        self._on_device.remove(key)
        entry.model.stop()
        entry.free()
        EVICTIONS.labels(tier="device", reason=reason).inc()
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        logger.info(
            "model removed from the device",
            extra={
                "key": key,
                "reason": reason,
                "evicted_for": evicted_for,
                "freed_bytes": entry.memory_bytes,
                "reload_s": round(self._reload_s(key, entry.memory_bytes), 3),
            },
        )
        self._on_evicted(Eviction(spec, entry.memory_bytes, reason, evicted_for))
