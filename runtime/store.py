"""The models on the device: a budget in bytes, who uses what, and who must leave for whom.

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
from runtime.eviction import Candidate, choose_victims
from runtime.metrics import EVICTIONS, TIER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.model import ModelName
    from runtime.served_model import ServedModel

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long a load waits for models in use to let go of memory."""


@dataclass(slots=True)
class Resident:
    """A model on the device. Mutable: the store counts its users."""

    model: ServedModel
    memory_bytes: int
    users: int = 0
    last_used: int = 0
    is_retired: bool = False
    """Leaves the device when its last user is done."""

    @property
    def key(self) -> str:
        """Which generation of which model."""
        return self.model.spec.key


class ModelStore(ModelRepository):  # type: ignore[misc]  # kserve ships no types
    """What is on the device and what it costs."""

    def __init__(self, budget_bytes: int, on_evicted: Callable[[str], None]) -> None:
        super().__init__()
        self.budget_bytes = budget_bytes
        self._on_evicted = on_evicted
        self._residents: dict[str, Resident] = {}
        self._reserved: dict[str, int] = {}
        self._uses = itertools.count(1)
        self._freed = asyncio.Condition()

    # Use

    def pin(self, key: str, users: int = 1) -> Resident | None:
        """The model if it is on the device, kept there until as many `unpin`."""
        resident = self._residents.get(key)
        if resident is None:
            return None
        resident.is_retired = False  # wanted again before its last user was done
        resident.users += users
        resident.last_used = next(self._uses)
        return resident

    async def unpin(self, resident: Resident) -> None:
        """One user is done."""
        resident.users -= 1
        resident.last_used = next(self._uses)
        if resident.users == 0:
            if resident.is_retired:
                self._drop(resident, "retired")
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

    async def reserve(self, key: str, memory_bytes: int) -> None:
        """Set room aside, evicting the least recently used; raises MemoryBusy, ModelTooLarge."""
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
        free = self.budget_bytes - self.used_bytes - sum(self._reserved.values())
        idle = [
            Candidate(resident.key, resident.memory_bytes, resident.last_used)
            for resident in self._residents.values()
            if resident.users == 0 and not resident.model.spec.policy.pin
        ]
        victims = choose_victims(idle, memory_bytes - free)
        if victims is None:
            return False
        for victim in victims:
            self._drop(self._residents[victim], "memory")
        self._reserved[key] = memory_bytes
        return True

    async def cancel_reservation(self, key: str) -> None:
        """Give room back that no model took."""
        if self._reserved.pop(key, None) is not None:
            async with self._freed:
                self._freed.notify_all()

    def add(self, model: ServedModel, memory_bytes: int) -> Resident:
        """Put a loaded model into the room reserved for it."""
        key = model.spec.key
        self._reserved.pop(key, None)
        resident = Resident(model, memory_bytes, last_used=next(self._uses))
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
            resident.is_retired = True
            return True
        self._drop(resident, reason)
        async with self._freed:
            self._freed.notify_all()
        return True

    async def wait_gone(self, key: str) -> None:
        """Return once the model is off the device."""
        async with self._freed:
            await self._freed.wait_for(lambda: key not in self._residents)

    def _drop(self, resident: Resident, reason: str) -> None:
        del self._residents[resident.key]
        resident.model.stop()
        self._publish(resident.model.spec.name)
        EVICTIONS.labels(reason=reason).inc()
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        logger.info("model left the device", extra={"key": resident.key, "reason": reason})
        self._on_evicted(resident.key)

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
