"""Interface of the component that starts and stops a pool's pods.

On one machine the platform reads the wanted number from the registry
(`pilotlight/platform/pod_processes.py`); on a cluster the loop calls
`autoscaler/service/pool_actuator.py` too.
"""

from dataclasses import dataclass
from typing import Protocol

from autoscaler.planning.pool_view import Limits
from autoscaler.service.settings import AutoscalerSettings
from registry.domain.records import WantedPods
from registry.inference_service.tenant_rules import TenantRules


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Bounds and current size of a pool."""

    limits: Limits
    pods: int | None = None
    """Pods that the actuator last set; None: the registry has the number."""


class Actuator(Protocol):
    """What the loop calls at every tick."""

    def size(self) -> PoolSize | None:
        """Bounds and size; None: the number of pods must not be planned now."""

    def rules(self) -> TenantRules:
        """What the pool grants to namespaces."""

    def set_leading(self, *, is_leading: bool) -> None:
        """Set whether this autoscaler leads."""

    def scale_to(self, target: WantedPods) -> None:
        """Called by the leader only, after the registry has recorded the target."""


class RegistryActuator:
    """For pods that follow the registry's record; bounds come from the settings."""

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._size: PoolSize | None = None
        self._rules = settings.rules
        if settings.min_pods is not None or settings.max_pods is not None:
            self._size = PoolSize(Limits(settings.min_pods or 0, settings.max_pods))

    def size(self) -> PoolSize | None:
        return self._size

    def rules(self) -> TenantRules:
        return self._rules

    def set_leading(self, *, is_leading: bool) -> None:
        """Does nothing: pods follow the registry's record, whichever autoscaler wrote it."""

    def scale_to(self, target: WantedPods) -> None:
        """Does nothing: the target is in the record."""
