"""The pod's readiness and liveness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.device.worker import DeviceWorker
    from runtime.registration.registry_agent import RegistryAgent
    from runtime.request_threads import RequestThreads
    from runtime.serving.in_flight import InFlightRequests
    from runtime.serving.single_model import SingleModel


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
