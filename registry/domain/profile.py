"""What a model's inference costs by batch size, and the batch size that is worth having.

Measured by `pilotlight profile` and refined by pods in service; carried by the registry; read by
the batcher, and by whoever plans placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

NEAR_PEAK_RATIO: Final = 0.95
"""Share of the highest throughput that is as good as all of it."""


@dataclass(frozen=True, slots=True, order=True)
class ProfilePoint:
    """One batch size: the median time of its inference, and the memory it took for a while."""

    rows: int
    latency_s: float
    memory_bytes: int | None = None
    """Beyond the weights; None where it was not measured."""

    @property
    def rows_per_s(self) -> float:
        """Throughput of batches of this size, one after the other."""
        return self.rows / self.latency_s


@dataclass(frozen=True, slots=True)
class Profile:
    """All batch sizes that were measured of one generation of a model on one kind of device."""

    key: str
    device: str
    points: tuple[ProfilePoint, ...]
    """By rows, one each."""
    limited_by: str = ""
    """What ended the search for larger batches: `throughput`, `memory`, `size`; empty: nothing."""

    @property
    def best_rows(self) -> int:
        """The batch size to use; 1 where nothing was measured."""
        return best_rows(self.points)


def best_rows(points: Sequence[ProfilePoint]) -> int:
    """The smallest batch whose throughput is as good as the highest: larger ones only add delay."""
    if not points:
        return 1
    highest = max(point.rows_per_s for point in points)
    return min(point.rows for point in points if point.rows_per_s >= NEAR_PEAK_RATIO * highest)
