"""A pod for one model, as KServe's serving runtimes run it.

The pod declares the model in a registry of its own, is ready once the model is loaded, and keeps it
loaded. KServe puts the weights into a folder before the pod starts.
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

POLL_INTERVAL_S = 0.5


def single_model_spec(name: str, folder: str) -> ModelSpec:
    return ModelSpec(ModelName("default", name), f"file://{folder}", policy=ModelPolicy(pin=True))


class SingleModel:
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
        self._reported = ""

    @property
    def is_loaded(self) -> bool:
        return self._store.holds(self._spec.key)

    async def run(self) -> None:
        """Declare and load the model, again if it was lost, until cancelled."""
        await self._watch.wait_synced()
        while True:
            try:
                await self._reconcile()
                self._reported = ""
            except (RegistryError, RuntimePackageError) as error:
                self._report(error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _reconcile(self) -> None:
        record = self._watch.state.models.get(self._spec.name)
        if record is None or record.spec != self._spec:
            await self._registry.put_models([self._spec])
        if not self.is_loaded:
            await self._coordinator.preload(self._spec, ClaimScope.POD, Tier.DEVICE)

    def _report(self, error: Exception) -> None:
        """Log once per cause, not once per attempt."""
        if str(error) != self._reported:
            self._reported = str(error)
            logger.warning("the pod's model is not loaded yet", extra={"error": error})
