"""Steps of workflows that wait at a pod or run there, as the registry counts them.

Their reservations carry their model, so that every scheduler knows what the others have queued.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class QueuedSteps:
    """Of one pod: steps that have been sent and whose inference has not ended."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """By model key; each at least 1."""
    since_s: float = inf
    """When the pod can have begun the first of them: when the last one before them ended, or, on
    an idle pod, when they came. Infinite: it is not known."""

    def followed_by(self, counts: Mapping[str, int], now_s: float) -> "QueuedSteps":
        """The steps after a change at `now_s`."""
        has_one_ended = any(counts.get(key, 0) < count for key, count in self.counts.items())
        is_begun = bool(self.counts) and not has_one_ended
        return QueuedSteps(dict(counts), self.since_s if is_begun else now_s)


NO_STEPS: Final = QueuedSteps()


def step_reservation_id(identity: str, key: str) -> str:
    """The id of a step's reservation, which names the model for the registry's script."""
    return f"{identity}|{key}"
