"""What each tenant used lately, so that one that uses little does not wait behind another's flood.

Tenants that always have requests get equal shares: the one that used least comes next. Use counts
half after `HALF_LIFE_S`, so that one that was idle is ahead of all others that long.
"""

from collections import OrderedDict
from typing import Final

HALF_LIFE_S: Final = 0.5
MAX_TENANTS: Final = 4096
"""Tenants whose use is known; all others come first."""


class TenantUsage:
    """Seconds of devices by tenant. The clock is passed in, and may be set back."""

    def __init__(self) -> None:
        self._used: OrderedDict[str, tuple[float, float, int]] = OrderedDict()
        """By tenant: seconds, the time that they are counted at, and the number of its last turn;
        in the order of these."""
        self._turns = 0

    def add(self, tenant: str, seconds: float, now_s: float) -> None:
        """A turn of the tenant, which takes so many seconds."""
        self._turns += 1
        self._used[tenant] = self._at(tenant, now_s) + seconds, now_s, self._turns
        self._used.move_to_end(tenant)
        if len(self._used) > MAX_TENANTS:
            self._used.popitem(last=False)

    def rank(self, tenant: str, now_s: float) -> tuple[float, int]:
        """The smallest is next: by use, then by the last turn."""
        known = self._used.get(tenant)
        return (0.0, 0) if known is None else (self._at(tenant, now_s), known[2])

    def _at(self, tenant: str, now_s: float) -> float:
        used_s, counted_at_s, _ = self._used.get(tenant, (0.0, now_s, 0))
        return float(used_s * 0.5 ** (max(0.0, now_s - counted_at_s) / HALF_LIFE_S))
