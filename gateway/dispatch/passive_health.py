"""Passive health checks: pods that the gateway avoids for a while after an error or refusal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.pod_state import PodState

_SUSPECT_S: Final = 1.0
_DEVICE_FULL_S: Final = 0.1
_FIRST_FULL_S: Final = 0.02
_MAX_FULL_S: Final = 0.5


class PassiveHealth:
    """Marks pods in the cluster state and removes the marks; then calls `on_recovery`."""

    def __init__(self, on_recovery: Callable[[], None]) -> None:
        self._on_recovery = on_recovery
        self._loop = asyncio.get_running_loop()

    def suspect(self, pod: PodState) -> None:
        """Send nothing to the pod for a while, or until the registry reports it again."""
        self._avoid(pod, _SUSPECT_S)

    def mark_device_full(self, pod: PodState) -> None:
        """Let inferences end that fill the device's memory."""
        self._avoid(pod, _DEVICE_FULL_S)

    def _avoid(self, pod: PodState, for_s: float) -> None:
        pod.set_suspect(is_suspect=True)

        def restore() -> None:
            pod.set_suspect(is_suspect=False)
            self._on_recovery()

        self._loop.call_later(for_s, restore)

    def mark_full(self, pod: PodState, refusals: int) -> None:
        """Count all slots of the pod as taken; longer after each of the request's refusals."""
        slots = pod.slots
        pod.add_pending(slots=slots)

        def restore() -> None:
            pod.add_pending(slots=-slots)
            self._on_recovery()

        self._loop.call_later(min(_FIRST_FULL_S * 2**refusals, _MAX_FULL_S), restore)
