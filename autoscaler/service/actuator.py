"""Who starts and ends a pool's pods, as the autoscaler sees it.

On one machine the platform follows the registry's record (`pilotlight/platform/pod_scaling.py`); on
a cluster `autoscaler/kubernetes/pools/pool_actuator.py` is told beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autoscaler.planning.pool_view import Limits

if TYPE_CHECKING:
    from autoscaler.service.settings import AutoscalerSettings
    from registry.domain.action_log import WantedPods


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What is allowed of a pool, and what it has."""

    limits: Limits
    pods: int | None = None
    """Pods it was last given; None: what the registry says."""


class Actuator(Protocol):
    """What the loop asks and tells at every tick."""

    def size(self) -> PoolSize | None:
        """The pool's bounds and size; None: its pods are not to be planned, now or at all."""

    def lead(self, *, is_leading: bool) -> None:
        """Whether this autoscaler leads."""

    def want(self, wanted: WantedPods) -> None:
        """Have so many pods; said by the leader only, after the registry knows."""


class RegistryActuator:
    """Pods of whoever follows the registry's record, within bounds from the settings."""

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._size: PoolSize | None = None
        if settings.min_pods is not None or settings.max_pods is not None:
            self._size = PoolSize(Limits(settings.min_pods or 0, settings.max_pods))

    def size(self) -> PoolSize | None:
        """The bounds of the settings; None where there are none."""
        return self._size

    def lead(self, *, is_leading: bool) -> None:
        """Nothing: the record is followed, whoever wrote it."""

    def want(self, wanted: WantedPods) -> None:
        """Nothing: it is in the record."""
