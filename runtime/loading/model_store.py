"""The models on the device: who waits for room, and what happens when a model leaves.

The bookkeeping (budget, users, who must leave for whom) is `residents`.

All methods belong to the event loop. It is also KServe's model repository, so KServe's endpoints
see the same models. Loading is `loads`; this module never blocks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kserve import ModelRepository

from runtime.errors import MemoryBusy, ModelTooLarge
from runtime.metrics import EVICTIONS, TIER_BYTES
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import EvictionPolicy, lru

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.model import ModelName, ModelSpec
    from runtime.loading.served_model import ServedModel

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long a load waits for models in use to let go of memory."""


@dataclass(eq=False, slots=True)
class StoreEntry(CachedModel):
    """A model on the device, and how it leaves."""

    model: ServedModel = field(kw_only=True)
    release: Callable[[], None] = field(kw_only=True)
    """Gives its memory back."""
    retired_for: str | None = None
    """Why it leaves the device when its last user is done, if it does."""

    @property
    def is_pinned(self) -> bool:
        """Whether its annotations keep it there."""
        return self.model.spec.policy.pin


@dataclass(frozen=True, slots=True)
class Eviction:
    """A model that has left the device."""

    spec: ModelSpec
    freed_bytes: int
    reason: str
    wanted_by: str | None
    """The model that needed the room."""

    @property
    def is_for_room(self) -> bool:
        """Whether it left only because others needed the memory."""
        return self.wanted_by is not None


class ModelStore(ModelRepository):  # type: ignore[misc]  # kserve ships no types
    """What is on the device and what it costs."""

    def __init__(
        self,
        budget_bytes: int,
        on_evicted: Callable[[Eviction], None],
        *,
        policy: EvictionPolicy = lru,
        reload_s: Callable[[str, int], float] = lambda _key, _bytes: 1.0,
    ) -> None:
        """A store without models.

        Args:
            budget_bytes: for all models together.
            on_evicted: called after a model has left.
            policy: which models leave first.
            reload_s: expected time to bring a model of some size back after its eviction.
        """
        super().__init__()
        self.budget_bytes = budget_bytes
        self._on_evicted = on_evicted
        self._reload_s = reload_s
        self._on_device: DeviceCache[StoreEntry] = DeviceCache(
            budget_bytes, policy=policy, reload_s=reload_s, now_s=time.monotonic
        )
        self._freed = asyncio.Condition()

    # Use

    def acquire(self, key: str, users: int = 1) -> StoreEntry | None:
        """The model if it can infer on the device, kept there until as many `unpin`."""
        entry = self._on_device.by_key.get(key)
        if entry is None or entry.model.is_broken:
            return None
        entry.retired_for = None  # wanted again before its last user was done
        self._on_device.use(entry, users)
        return entry

    def broken_reason(self, key: str) -> str | None:
        """Why a model that is on the device cannot infer, where that is so."""
        entry = self._on_device.by_key.get(key)
        return entry.model.device_model.broken_reason if entry is not None else None

    async def release(self, entry: StoreEntry) -> None:
        """One user is done."""
        self._on_device.end_use(entry)
        if entry.users == 0:
            if entry.retired_for is not None:
                self._drop(entry, entry.retired_for)
            async with self._freed:
                self._freed.notify_all()

    def holds(self, key: str) -> bool:
        """Whether the model is on the device."""
        return key in self._on_device.by_key

    def model_keys(self) -> tuple[str, ...]:
        """All models on the device."""
        return tuple(self._on_device.by_key)

    def bytes_of(self, key: str) -> int:
        """Memory of a model on the device; 0 where it is not."""
        entry = self._on_device.by_key.get(key)
        return entry.memory_bytes if entry else 0

    @property
    def used_bytes(self) -> int:
        """Memory of all models on the device."""
        return self._on_device.used_bytes

    @property
    def idle_byte_s(self) -> float:
        """Bytes of models that no request uses times the seconds they are there, up to now."""
        return self._on_device.idle_byte_s

    # Room

    @property
    def reserved_bytes(self) -> int:
        """Room set aside for models on their way."""
        return self._on_device.reserved_bytes

    async def reserve(self, key: str, memory_bytes: int) -> None:
        """Set room aside, evicting others if need be; raises MemoryBusy, ModelTooLarge."""
        self.check_fits(key, memory_bytes)
        try:
            async with asyncio.timeout(PATIENCE_S), self._freed:
                await self._freed.wait_for(lambda: self._make_room(key, memory_bytes))
        except TimeoutError as error:
            raise MemoryBusy(
                f"{key} needs {memory_bytes} bytes; models in use hold the pod's memory"
            ) from error

    def check_fits(self, key: str, memory_bytes: int) -> None:
        """Raise ModelTooLarge where the whole budget would not do."""
        if memory_bytes > self.budget_bytes:
            raise ModelTooLarge(
                f"{key} needs {memory_bytes} bytes, the pod's memory budget is"
                f" {self.budget_bytes} bytes"
            )

    def _make_room(self, key: str, memory_bytes: int) -> bool:
        return self._let_go(self._on_device.reserve(key, memory_bytes), "memory", key)

    async def evict_one(self, wanted_by: str) -> bool:
        """Let the next idle model go, for a device that has less room than the budget says."""
        has_left = self._let_go(self._on_device.choose_victims(1), "device-full", wanted_by)
        if has_left:
            async with self._freed:
                self._freed.notify_all()
        return has_left

    def _let_go(self, victims: tuple[str, ...] | None, reason: str, wanted_by: str) -> bool:
        for key in victims or ():
            self._drop(self._on_device.by_key[key], reason, wanted_by)
        return victims is not None

    async def cancel_reservation(self, key: str) -> None:
        """Give room back that no model took."""
        if self._on_device.cancel_reservation(key):
            async with self._freed:
                self._freed.notify_all()

    def add(
        self,
        model: ServedModel,
        memory_bytes: int,
        release: Callable[[], None] = lambda: None,
    ) -> StoreEntry:
        """Put a loaded model into the room reserved for it; `release` gives its memory back."""
        entry = StoreEntry(model.spec.key, memory_bytes, model=model, release=release)
        self._on_device.add(entry)
        self._publish(model.spec.name)
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        return entry

    # Leaving

    async def retire(self, key: str, reason: str) -> bool:
        """Take a model off the device, at once or when its last user is done; False: not there."""
        entry = self._on_device.by_key.get(key)
        if entry is None:
            return False
        if entry.users:
            entry.retired_for = reason
            return True
        self._drop(entry, reason)
        async with self._freed:
            self._freed.notify_all()
        return True

    async def wait_removed(self, key: str) -> None:
        """Return once the model is off the device."""
        async with self._freed:
            await self._freed.wait_for(lambda: key not in self._on_device.by_key)

    def _drop(self, entry: StoreEntry, reason: str, wanted_by: str | None = None) -> None:
        key, spec = entry.key, entry.model.spec
        self._on_device.remove(key)
        entry.model.stop()
        entry.release()
        self._publish(spec.name)
        EVICTIONS.labels(tier="device", reason=reason).inc()
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        logger.info(
            "model removed from the device",
            extra={
                "key": key,
                "reason": reason,
                "evicted_for": wanted_by,
                "freed_bytes": entry.memory_bytes,
                "reload_s": round(self._reload_s(key, entry.memory_bytes), 3),
            },
        )
        self._on_evicted(Eviction(spec, entry.memory_bytes, reason, wanted_by))

    # What KServe's endpoints see

    def _publish(self, name: ModelName) -> None:
        """File the newest generation on the device under the model's name."""
        of_name = [
            each.model for each in self._on_device.by_key.values() if each.model.spec.name == name
        ]
        names = {name.path_segment}
        if name.namespace == "default":
            names.add(name.name)
        for each in names:
            if of_name:
                self.models[each] = of_name[-1]
            else:
                self.models.pop(each, None)

    def unload(self, name: str) -> None:
        """KServe calls this when it stops; models leave with the process."""
