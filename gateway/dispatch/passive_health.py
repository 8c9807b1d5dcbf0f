"""Passive health checks: pods that the gateway avoids for a while after an error or refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from registry.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.routing.timers import Timers
    from registry.domain.pod_state import PodState

_SUSPECT_S: Final = 1.0
_DEVICE_FULL_S: Final = 0.1
_FULL: Final = Backoff(0.02, 0.5)


class PassiveHealth:
    """Marks pods in the cluster state and removes the marks; then calls `on_recovery`."""

    def __init__(self, timers: Timers, on_recovery: Callable[[], None]) -> None:
        self._timers = timers
        self._on_recovery = on_recovery

    def suspect(self, pod: PodState) -> None:
        """Send nothing to the pod for a while, or until the registry reports it again."""
        self._avoid(pod, _SUSPECT_S)

    def mark_device_full(self, pod: PodState) -> None:
        """Avoid the pod briefly, so that inferences that fill its device's memory can end."""
        self._avoid(pod, _DEVICE_FULL_S)

    def _avoid(self, pod: PodState, for_s: float) -> None:
        pod.set_suspect(is_suspect=True)
        self._timers.after(for_s, self._trust, pod)

    def _trust(self, pod: PodState) -> None:
        pod.set_suspect(is_suspect=False)
        self._on_recovery()

    def mark_full(self, pod: PodState, refusals: int) -> None:
        """Count all slots of the pod as taken for a backoff that grows with `refusals`."""
        slots = pod.slots
        pod.add_pending(slots=slots)
        self._timers.after(_FULL.pause_s(refusals + 1), self._free, (pod, slots))

    def _free(self, marked: tuple[PodState, int]) -> None:
        pod, slots = marked
        pod.add_pending(slots=-slots)
        self._on_recovery()
