"""Whether somebody unknown changes a number of pods that we set. Pure.

What was changed after us is set again, but later each time: 1 s, doubling up to 5 min.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoscaler.kubernetes.pools.pool_size import Owner, ScaledElsewhere
from autoscaler.service.backoff import Backoff

_WHOM = "pool"


@dataclass(slots=True)
class ScaleConflict:
    """What was last set or found, and pauses after others changed it. One owner."""

    _pods: int | None = None
    _pauses: Backoff = field(default_factory=Backoff)
    _reason: str = ""

    def expect(self, pods: int | None) -> None:
        """The next look should find this many; None: whatever it finds."""
        self._pods = pods

    def look(self, pods: int, now_s: float) -> ScaledElsewhere | None:
        """Take in the number there is; says why it is to be left alone for now, if it is."""
        if self._pods is not None and pods != self._pods:
            self._pauses.refused(_WHOM, now_s)
            self._reason = (
                f"the number of pods was set from {self._pods} to {pods} by somebody else; it is "
                "set again after a while that grows each time. Change minReplicas and maxReplicas "
                "of the InferenceService, or stop the autoscaler, to decide about it"
            )
        self._pods = pods
        if self._pauses.is_paused(_WHOM, now_s):
            return ScaledElsewhere(Owner.UNKNOWN, self._reason)
        return None
