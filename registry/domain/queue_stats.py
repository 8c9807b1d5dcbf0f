"""How many requests wait in gateways for a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Requests of one model that wait in gateways."""

    requests: int
    starved: int
    """Those of them past 60 % of their time to the deadline."""
    oldest_s: float
    """Registry time at which the first of them came."""
