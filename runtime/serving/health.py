"""The pod's readiness and liveness, and the only model of a pod as KServe's runtimes run it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from common.inference_protocol.errors import PodError
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.pod_state import ANY_COPIES
from registry.errors import RegistryError
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.device.worker import DeviceWorker
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.loading.model_store import ModelStore
from runtime.registration.registry_agent import RegistryAgent
from runtime.serving.in_flight import InFlightRequests
from runtime.threads import RequestThreads

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Health:
    """Ready: registered, not draining and alive; a pod for one model also needs its model loaded.

    Alive: the device and its thread work, and a request's thread; otherwise the pod has to be
    restarted.
    """

    agent: RegistryAgent
    in_flight: InFlightRequests
    device: DeviceWorker
    threads: RequestThreads
    single_model: SingleModel | None = None

    @property
    def is_ready(self) -> bool:
        if self.single_model is not None and not self.single_model.is_loaded:
            return False
        return self.agent.is_registered and not self.in_flight.is_draining and self.is_live

    @property
    def is_live(self) -> bool:
        return self.device.is_alive and not self.threads.are_stuck


logger = logging.getLogger(__name__)


def single_model_spec(name: str, folder: str) -> ModelSpec:
    return ModelSpec(ModelName("default", name), f"file://{folder}", policy=ModelPolicy(pin=True))


@dataclass(eq=False, slots=True)
class SingleModel:
    """The model of a pod for one, declared in a registry of the pod's own, and kept loaded.

    KServe puts the weights into a folder before the pod starts.
    """

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
            except (RegistryError, PodError) as error:
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
