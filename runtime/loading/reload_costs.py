"""Expected time to load a model again, from the past loads of this pod.

For a model that was never loaded from a tier it follows from its size and the tier's average rate.
"""

from __future__ import annotations

from typing import Final

from registry.domain.model import Tier

PRIOR_BYTES_PER_S: Final = {Tier.HOST: 10e9, Tier.DISK: 2e9, Tier.REMOTE: 1e8}
"""Rates before any load of this pod: mapped memory, a warm disk, object storage."""
FIXED_S: Final = 0.02
"""Time of a load besides reading the bytes."""
NEWEST_SHARE: Final = 0.3
"""Weight of the newest rate in the running average."""


class ReloadCosts:
    """Load times per model and tier. Owned by the event loop."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, Tier], float] = {}
        self._rates = dict(PRIOR_BYTES_PER_S)

    def observe(self, key: str, tier: Tier, size_bytes: int, seconds: float) -> None:
        self._seconds[key, tier] = seconds
        rate = size_bytes / max(1e-3, seconds - FIXED_S)
        self._rates[tier] += NEWEST_SHARE * (rate - self._rates[tier])

    def estimate_s(self, key: str, tier: Tier, size_bytes: int) -> float:
        measured = self._seconds.get((key, tier))
        return measured if measured is not None else FIXED_S + size_bytes / self._rates[tier]

    def forget(self, key: str) -> None:
        for observed in [observed for observed in self._seconds if observed[0] == key]:
            del self._seconds[observed]
