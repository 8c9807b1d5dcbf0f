"""Detects that somebody else changes the number of a pool's pods. Pure.

After each foreign change the autoscaler sets its own number again, but waits longer each time: 1 s,
doubling up to 5 min.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoscaler.kubernetes.pools.pool_size import Owner, ScaledElsewhere
from autoscaler.service.backoff import KeyedBackoff

_KEY = "pool"


@dataclass(slots=True)
class ScaleConflict:
    """The last number set or found, and the backoff after foreign changes. One owner."""

    _pods: int | None = None
    _backoff: KeyedBackoff = field(default_factory=KeyedBackoff)
    _reason: str = ""

    def expect(self, pods: int | None) -> None:
        """Set the number that the next check must find; None: any."""
        self._pods = pods

    def check(self, pods: int, now_s: float) -> ScaledElsewhere | None:
        """Compare with the current number; returns why the pool must not be scaled now, if so."""
        if self._pods is not None and pods != self._pods:
            self._backoff.failed(_KEY, now_s)
            self._reason = (
                f"somebody else changed the number of pods from {self._pods} to {pods}; the "
                "autoscaler sets it again after a delay that grows with each change. To decide "
                "the number, change minReplicas and maxReplicas of the InferenceService, or stop "
                "the autoscaler"
            )
        self._pods = pods
        if self._backoff.is_paused(_KEY, now_s):
            return ScaledElsewhere(Owner.UNKNOWN, self._reason)
        return None
