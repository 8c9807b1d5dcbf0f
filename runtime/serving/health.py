"""Whether the pod should get requests, and whether it should be replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.device.worker import DeviceWorker
    from runtime.registration.registry_agent import RegistryAgent
    from runtime.serving.predict_service import PredictService
    from runtime.serving.single_model import SingleModel


@dataclass(frozen=True, slots=True)
class Health:
    """Readiness: registered, and not draining. Liveness: the device still has its thread.

    A pod for one model is ready once it has it.
    """

    agent: RegistryAgent
    service: PredictService
    device: DeviceWorker
    one_model: SingleModel | None = None

    @property
    def is_ready(self) -> bool:
        """Whether requests should come here."""
        if self.one_model is not None and not self.one_model.is_loaded:
            return False
        return self.agent.is_registered and not self.service.is_draining and self.is_live

    @property
    def is_live(self) -> bool:
        """Whether the process can do its work; one that cannot wants to be started again."""
        return self.device.is_alive
