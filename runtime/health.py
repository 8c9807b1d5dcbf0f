"""Whether the pod should get requests, and whether it should be replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.agent import Agent
    from runtime.device.worker import DeviceWorker
    from runtime.service import PredictService


@dataclass(frozen=True, slots=True)
class Health:
    """Readiness: registered, and not draining. Liveness: the device still has its thread."""

    agent: Agent
    service: PredictService
    device: DeviceWorker

    @property
    def is_ready(self) -> bool:
        """Whether requests should come here."""
        return self.agent.is_registered and not self.service.is_draining and self.is_live

    @property
    def is_live(self) -> bool:
        """Whether the process can do its work; one that cannot wants to be started again."""
        return self.device.is_alive
