"""A pod for one model, as KServe's serving runtimes run it.

The pod declares the model in a registry of its own, is ready once the model is loaded, and keeps it
loaded. KServe puts the weights into a folder before the pod starts.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.reservation import ANY_COPIES
from registry.errors import RegistryError
from runtime.errors import RuntimePackageError

if TYPE_CHECKING:
    from registry.redis.client import Registry
    from registry.redis.watch import ClusterWatch
    from runtime.loading.load_coordinator import LoadCoordinator
    from runtime.loading.model_store import ModelStore

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5


def single_model_spec(name: str, folder: str) -> ModelSpec:
    return ModelSpec(ModelName("default", name), f"file://{folder}", policy=ModelPolicy(pin=True))


@dataclass(eq=False, slots=True)
class SingleModel:
    spec: ModelSpec
    registry: Registry
    watch: ClusterWatch
    coordinator: LoadCoordinator
    store: ModelStore
    _reported: str = field(default="", init=False)

    @property
    def is_loaded(self) -> bool:
        return self.store.holds(self.spec.key)

    async def run(self) -> None:
        """Declare and load the model, again if it was lost, until cancelled."""
        await self.watch.wait_synced()
        while True:
            try:
                await self._reconcile()
                self._reported = ""
            except (RegistryError, RuntimePackageError) as error:
                self._report(error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _reconcile(self) -> None:
        record = self.watch.state.models.get(self.spec.name)
        if record is None or record.spec != self.spec:
            await self.registry.put_models([self.spec])
        if not self.is_loaded:
            await self.coordinator.preload(self.spec, ANY_COPIES, Tier.DEVICE)

    def _report(self, error: Exception) -> None:
        """Log once per cause, not once per attempt."""
        if str(error) != self._reported:
            self._reported = str(error)
            logger.warning("the pod's model is not loaded yet", extra={"error": error})
