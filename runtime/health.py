"""Whether the pod should get requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.agent import Agent
    from runtime.service import PredictService


@dataclass(frozen=True, slots=True)
class Health:
    """Readiness: registered, and not draining. Being alive is simply answering."""

    agent: Agent
    service: PredictService

    @property
    def is_ready(self) -> bool:
        """Whether requests should come here."""
        return self.agent.is_registered and not self.service.is_draining
