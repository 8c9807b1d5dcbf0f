"""The models on the device: a budget in bytes, who uses what, and who must leave for whom.

Which ones leave is a rule of `eviction`; this module never picks a model in use or pinned.

All methods belong to the event loop. It is also KServe's model repository, so KServe's endpoints
see the same models. Loading is `loads`; this module never blocks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kserve import ModelRepository

from runtime.errors import MemoryBusy, ModelTooLarge
from runtime.eviction import Candidate, EvictionPolicy, lru
from runtime.metrics import EVICTIONS, TIER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.model import ModelName, ModelSpec
    from runtime.served_model import ServedModel

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long a load waits for models in use to let go of memory."""


@dataclass(slots=True)
class Resident:
    """A model on the device. Mutable: the store counts its users."""

    model: ServedModel
    memory_bytes: int
    release: Callable[[], None]
    """Gives its memory back."""
    users: int = 0
    uses: int = 0
    clock: float = 0.0
    """The rule's clock when it was last used."""
    last_used: int = 0
    retired_for: str | None = None
    """Why it leaves the device when its last user is done, if it does."""

    @property
    def key(self) -> str:
        """Which generation of which model."""
        return self.model.spec.key


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
        self._policy = policy
        self._reload_s = reload_s
        self._clock = 0.0
        self._residents: dict[str, Resident] = {}
        self._reserved: dict[str, int] = {}
        self._uses = itertools.count(1)
        self._freed = asyncio.Condition()

    # Use

    def pin(self, key: str, users: int = 1) -> Resident | None:
        """The model if it can infer on the device, kept there until as many `unpin`."""
        resident = self._residents.get(key)
        if resident is None or resident.model.is_broken:
            return None
        resident.retired_for = None  # wanted again before its last user was done
        resident.users += users
        resident.uses += users
        resident.last_used = next(self._uses)
        resident.clock = self._clock
        return resident

    def broken_reason(self, key: str) -> str | None:
        """Why a model that is on the device cannot infer, where that is so."""
        resident = self._residents.get(key)
        return resident.model.lane.broken if resident is not None else None

    async def unpin(self, resident: Resident) -> None:
        """One user is done."""
        resident.users -= 1
        resident.last_used = next(self._uses)
        if resident.users == 0:
            if resident.retired_for is not None:
                self._drop(resident, resident.retired_for)
            async with self._freed:
                self._freed.notify_all()

    def holds(self, key: str) -> bool:
        """Whether the model is on the device."""
        return key in self._residents

    def resident_keys(self) -> tuple[str, ...]:
        """All models on the device."""
        return tuple(self._residents)

    def bytes_of(self, key: str) -> int:
        """Memory of a model on the device; 0 where it is not."""
        resident = self._residents.get(key)
        return resident.memory_bytes if resident else 0

    @property
    def used_bytes(self) -> int:
        """Memory of all models on the device."""
        return sum(resident.memory_bytes for resident in self._residents.values())

    # Room

    @property
    def reserved_bytes(self) -> int:
        """Room set aside for models on their way."""
        return sum(self._reserved.values())

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
        free = self.budget_bytes - self.used_bytes - self.reserved_bytes
        if not self._evict(key, memory_bytes - free, "memory"):
            return False
        self._reserved[key] = memory_bytes
        return True

    async def evict_one(self, wanted_by: str) -> bool:
        """Let the next idle model go, for a device that has less room than the budget says."""
        has_left = self._evict(wanted_by, 1, "device-full")
        if has_left:
            async with self._freed:
                self._freed.notify_all()
        return has_left

    def _evict(self, wanted_by: str, needed_bytes: int, reason: str) -> bool:
        """Let idle models go until so much is free; False, and none goes, where all are too few."""
        idle = [
            Candidate(
                resident.key,
                resident.memory_bytes,
                resident.last_used,
                uses=max(1, resident.uses),
                reload_s=self._reload_s(resident.key, resident.memory_bytes),
                clock=resident.clock,
            )
            for resident in self._residents.values()
            if resident.users == 0 and not resident.model.spec.policy.pin
        ]
        victims = self._policy(idle, needed_bytes, self._clock)
        if victims is None:
            return False
        self._clock = victims.clock
        for key in victims.keys:
            self._drop(self._residents[key], reason, wanted_by)
        return True

    async def cancel_reservation(self, key: str) -> None:
        """Give room back that no model took."""
        if self._reserved.pop(key, None) is not None:
            async with self._freed:
                self._freed.notify_all()

    def add(
        self,
        model: ServedModel,
        memory_bytes: int,
        release: Callable[[], None] = lambda: None,
    ) -> Resident:
        """Put a loaded model into the room reserved for it; `release` gives its memory back."""
        key = model.spec.key
        self._reserved.pop(key, None)
        resident = Resident(
            model, memory_bytes, release, last_used=next(self._uses), clock=self._clock
        )
        self._residents[key] = resident
        self._publish(model.spec.name)
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        return resident

    # Leaving

    async def retire(self, key: str, reason: str) -> bool:
        """Take a model off the device, at once or when its last user is done; False: not there."""
        resident = self._residents.get(key)
        if resident is None:
            return False
        if resident.users:
            resident.retired_for = reason
            return True
        self._drop(resident, reason)
        async with self._freed:
            self._freed.notify_all()
        return True

    async def wait_gone(self, key: str) -> None:
        """Return once the model is off the device."""
        async with self._freed:
            await self._freed.wait_for(lambda: key not in self._residents)

    def _drop(self, resident: Resident, reason: str, wanted_by: str | None = None) -> None:
        key, spec = resident.key, resident.model.spec
        del self._residents[key]
        resident.model.stop()
        resident.release()
        self._publish(spec.name)
        EVICTIONS.labels(tier="device", reason=reason).inc()
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        logger.info(
            "model left the device",
            extra={
                "key": key,
                "reason": reason,
                "wanted_by": wanted_by,
                "freed_bytes": resident.memory_bytes,
                "reload_s": round(self._reload_s(key, resident.memory_bytes), 3),
            },
        )
        self._on_evicted(Eviction(spec, resident.memory_bytes, reason, wanted_by))

    # What KServe's endpoints see

    def _publish(self, name: ModelName) -> None:
        """File the newest generation on the device under the model's name."""
        of_name = [each.model for each in self._residents.values() if each.model.spec.name == name]
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
