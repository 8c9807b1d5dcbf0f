"""Slots that a tenant with many requests leaves to the others.

A request that finds no free slot waits for the end of a batch, and then at the device for the next
one, which began before it arrived. So a tenant that holds most of a pod's slots takes none of the
last ones while other tenants send requests, too. Pure.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from registry.domain.pod_state import PodState

HEADROOM: Final = 4
"""Of so many slots one is left to others: none of fewer."""
RECENT_S: Final = 10.0
"""How long ago another tenant's last request may have arrived."""


class RecentTenants:
    """When a tenant other than a given one last sent a request: the last two tenants suffice."""

    def __init__(self) -> None:
        self._last = ""
        self._last_s = -inf
        self._other_s = -inf
        """Of the last tenant before `_last`."""

    def record(self, tenant: str, now_s: float) -> None:
        if tenant != self._last:
            self._other_s = self._last_s
            self._last = tenant
        self._last_s = now_s

    def has_other(self, tenant: str, now_s: float) -> bool:
        """Whether another tenant has sent a request lately, by a clock that may be set back."""
        other_s = self._other_s if tenant == self._last else self._last_s
        return abs(now_s - other_s) <= RECENT_S


def leaves_slot(tenant: str, pod: PodState) -> bool:
    """Whether the tenant holds most of the slots, and may not take one of the last."""
    if pod.slots - pod.slots_busy > pod.slots // HEADROOM:
        return False
    prefix = f"{tenant}/"
    held = sum([each.key.startswith(prefix) for each in pod.work.holders])
    return 2 * held >= pod.slots
