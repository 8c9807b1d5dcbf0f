"""A pod for one model, as KServe's serving runtimes run.

It declares the model itself, loads it before it is ready, and keeps it. KServe has put the weights
into a folder by then. The pod's registry is its own, beside it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.reservation import ClaimScope
from registry.errors import RegistryError
from runtime.errors import RuntimePackageError

if TYPE_CHECKING:
    from registry.redis.client import Registry
    from registry.redis.watch import ClusterWatch
    from runtime.loading.load_coordinator import LoadCoordinator
    from runtime.loading.model_store import ModelStore

logger = logging.getLogger(__name__)

LOOK_S = 0.5


def single_model_spec(name: str, folder: str) -> ModelSpec:
    """The model of a pod that serves nothing else."""
    return ModelSpec(ModelName("default", name), f"file://{folder}", policy=ModelPolicy(pin=True))


class SingleModel:
    """Sees to it that the pod has its model."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        registry: Registry,
        watch: ClusterWatch,
        coordinator: LoadCoordinator,
        store: ModelStore,
    ) -> None:
        self._spec = spec
        self._registry = registry
        self._watch = watch
        self._coordinator = coordinator
        self._store = store
        self._told = ""

    @property
    def is_loaded(self) -> bool:
        """Whether the model is on the device."""
        return self._store.holds(self._spec.key)

    async def run(self) -> None:
        """Declare and load it, again where it was lost, until cancelled."""
        await self._watch.wait_synced()
        while True:
            try:
                await self._see_to_it()
                self._told = ""
            except (RegistryError, RuntimePackageError) as error:
                self._tell(error)
            await asyncio.sleep(LOOK_S)

    async def _see_to_it(self) -> None:
        record = self._watch.state.models.get(self._spec.name)
        if record is None or record.spec != self._spec:
            await self._registry.put_models([self._spec])
        if not self.is_loaded:
            await self._coordinator.preload(self._spec, ClaimScope.POD, Tier.DEVICE)

    def _tell(self, error: Exception) -> None:
        """One line per cause, not one per attempt."""
        if str(error) != self._told:
            self._told = str(error)
            logger.warning("the pod's model is not loaded yet", extra={"error": error})
