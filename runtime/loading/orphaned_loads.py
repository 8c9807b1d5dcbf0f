"""Whether a load that nobody waits for any more goes on; a pure rule.

What has begun to come is worth having: a client whose deadline passed mostly comes again, and joins
the load. Only where the pod is told so does a download end half-way, and then not one that is
nearly done; what has come stays on disk either way, and the next load goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.storage.load_ticket import LoadProgress

NEARLY_DONE_SHARE = 0.8
"""Of a download's bytes, from which on it is always finished."""


@dataclass(frozen=True, slots=True)
class OrphanedLoadParams:
    """How a pod treats loads that nobody waits for any more."""

    ends_downloads: bool = False
    """Whether a download ends that has begun and is not nearly done."""


def should_continue(progress: LoadProgress, params: OrphanedLoadParams) -> bool:
    """Whether a load goes on, as a preload, when its last waiter has left."""
    if not progress.has_started:
        return False
    if not params.ends_downloads:
        return True
    return progress.arrived_bytes >= NEARLY_DONE_SHARE * progress.total_bytes
