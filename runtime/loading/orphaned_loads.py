"""Whether to continue a load that no request waits for any more; a pure rule.

A started load is worth finishing: a client whose deadline passed usually retries, and joins the
load. Only if configured does a running download end, and then not one that is nearly complete; the
fetched bytes stay on disk in any case, and the next load continues from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.storage.load_ticket import LoadProgress

NEARLY_DONE_SHARE = 0.8
"""Share of a download's bytes from which on it is always finished."""


@dataclass(frozen=True, slots=True)
class OrphanedLoadParams:
    """A pod's settings for loads without waiting requests."""

    ends_downloads: bool = False
    """Whether to end a running download that is not nearly complete."""


def should_continue(progress: LoadProgress, params: OrphanedLoadParams) -> bool:
    """Whether a load continues, as a preload, after its last waiter has left."""
    if not progress.has_started:
        return False
    if not params.ends_downloads:
        return True
    return progress.arrived_bytes >= NEARLY_DONE_SHARE * progress.total_bytes
