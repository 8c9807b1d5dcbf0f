"""Exponential backoff. The caller keeps the number of failures and the time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts, doubled with each failure in a row."""

    initial_s: float
    max_s: float = math.inf

    def pause_s(self, failures: int) -> float:
        """The pause after this many failures in a row, from 1."""
        return min(self.max_s, self.initial_s * 2.0 ** min(failures - 1, 30))
