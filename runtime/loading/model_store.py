"""The models on the device: `device_cache` with networks, logs and metrics.

All methods belong to the event loop and none blocks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.domain.pod import CopyReport
from runtime.errors import ModelBroken
from runtime.loading.served_model import ServedModel
from runtime.metrics import EVICTIONS, TIER_BYTES
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import EvictionPolicy, lru
from runtime.weights.safetensors_files import DeviceWeights, StoredTensor

if TYPE_CHECKING:
    import torch


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """The weights of a model on the device, for its adapters."""

    weights: DeviceWeights
    stored: Sequence[StoredTensor]
    """In the model's files."""
    tensors: Sequence[StoredTensor]
    """As the network takes them."""
    dtype: torch.dtype | None
    """Of the weights, where it is not that of the configuration."""


@dataclass(eq=False, slots=True)
class StoreEntry(CachedModel):
    model: ServedModel = field(kw_only=True)
    free: Callable[[], None] = field(kw_only=True)
    """Frees its memory."""
    shared: SharedWeights | None = field(default=None, kw_only=True)
    """Its weights, if adapters may share them."""
    base: StoreEntry | None = field(default=None, kw_only=True)
    adapters: list[StoreEntry] = field(default_factory=list, kw_only=True)

    @property
    def is_pinned(self) -> bool:
        """Whether its annotations exempt it from eviction."""
        return self.model.spec.policy.pin


class ModelStore(DeviceCache[StoreEntry]):
    def __init__(
        self,
        budget_bytes: int,
        on_removed: Callable[[StoreEntry, str, str | None], None],
        *,
        policy: EvictionPolicy = lru,
        reload_s: Callable[[str, int], float] = lambda _key, _bytes: 1.0,
        quota_of: Callable[[str], int | None] = lambda _namespace: None,
        on_taken: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        """`on_taken` gets what models and loads have of the budget, whenever it changes."""
        super().__init__(
            budget_bytes,
            policy=policy,
            reload_s=reload_s,
            now_s=time.monotonic,
            on_removed=self._removed,
            quota_of=quota_of,
        )
        self._after_removal = on_removed
        self._on_taken = on_taken

    def try_reserve(self, key: str, memory_bytes: int) -> bool:
        is_reserved = super().try_reserve(key, memory_bytes)
        self._publish()
        return is_reserved

    def cancel_reservation(self, key: str) -> None:
        super().cancel_reservation(key)
        self._publish()

    def _publish(self) -> None:
        self._on_taken(self.used_bytes + self.reserved_bytes)

    def acquire(self, key: str, users: int = 1) -> StoreEntry | None:
        """The model, if it is there, until each user has called `end_use`; raises ModelBroken."""
        entry = self.by_key.get(key)
        if entry is not None:
            if (reason := entry.model.device_model.broken_reason) is not None:
                raise ModelBroken(reason)  # it can be loaded again only once it is off the device
            self.use(entry, users)
        return entry

    def holds(self, key: str) -> bool:
        """Whether the model is on the device, also if it cannot infer."""
        return key in self.by_key

    def bytes_of(self, key: str) -> int:
        """Memory of a model on the device; 0 if it is not there."""
        entry = self.by_key.get(key)
        return entry.memory_bytes if entry else 0

    def add(self, entry: StoreEntry) -> None:
        super().add(entry)
        if entry.base is not None:
            entry.base.adapters.append(entry)
        self._publish()
        TIER_BYTES.labels(tier="device").set(self.used_bytes)

    def copy_reports(self) -> dict[str, CopyReport]:
        """Use of the models on the device, by key."""
        now_s = time.monotonic()
        return {
            key: CopyReport(
                entry.users, entry.served, max(0.0, now_s - entry.last_s) if entry.served else None
            )
            for key, entry in self.by_key.items()
        }

    async def wait_removed(self, key: str) -> None:
        def is_removed() -> bool:
            return key not in self.by_key

        done = asyncio.Event()
        self.call_when(is_removed, done.set)
        try:
            await done.wait()
        finally:
            self.stop_waiting(is_removed)

    def _removed(self, entry: StoreEntry, reason: str, evicted_for: str | None) -> None:
        for adapter in tuple(entry.adapters):  # idle, as it is
            self._remove(adapter, reason, evicted_for)
        if entry.base is not None:
            entry.base.adapters.remove(entry)
        entry.model.stop()
        entry.free()
        self._publish()
        EVICTIONS.labels(tier="device", reason=reason).inc()
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        logger.info(
            "model removed from the device",
            extra={
                "key": entry.key,
                "reason": reason,
                "evicted_for": evicted_for,
                "freed_bytes": entry.memory_bytes,
                "reload_s": round(self.reload_s(entry.key, entry.memory_bytes), 3),
            },
        )
        self._after_removal(entry, reason, evicted_for)
