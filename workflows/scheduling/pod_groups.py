"""The pods over which a scheduler plans, where schedulers divide a pool among them.

Zhang et al. 2025, section 8.5: large clusters are split behind a load balancer. A pod's group
follows from its name alone, so groups are disjoint, no pod is in none, and none changes its group
when others come and go.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One group of several."""

    number: int = 0
    """From 0 on."""
    groups: int = 1

    def holds(self, pod: str) -> bool:
        if self.groups == 1:
            return True
        digest = hashlib.blake2b(pod.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.groups == self.number


WHOLE_POOL: Final = PodGroup()


def members(pods: Sequence[str], group: PodGroup) -> list[int]:
    """Positions of the group's pods; of all where it has none, since its runs must go somewhere."""
    own = [at for at, pod in enumerate(pods) if group.holds(pod)]
    return own or list(range(len(pods)))
