"""What it takes to move outputs between devices, by tier: Zhang et al. 2025, section 6.2.

Measured where pods have measured it, else as assumed. Within one device an output is not moved.
Times in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import assert_never

from registry.domain.estimates import (
    MAX_CLASSES,
    ModelEstimates,
    TransferTier,
    class_bytes,
    transfer_measure,
    transfer_tier,
)


@dataclass(frozen=True, slots=True)
class TransferCosts:
    """Of one tier."""

    fixed_s: float
    bytes_per_s: float

    def seconds(self, size_bytes: float) -> float:
        return self.fixed_s + size_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Links:
    """By tier, as `registry.domain.estimates.transfer_tier` gives it."""

    sent: TransferCosts
    """Small outputs, which the scheduler sends: more than it takes it to send them to the device
    that computed them."""
    shared_memory: TransferCosts
    raw_bytes: TransferCosts

    def seconds(self, size_bytes: float, calls: int, *, shares_memory: bool) -> float:
        """Time of the outputs, of `size_bytes` each, of calls that ran as one batch."""
        tier = transfer_tier(size_bytes, shares_memory=shares_memory)
        match tier:
            case None:
                costs = self.sent
            case TransferTier.SHARED_MEMORY:
                costs = self.shared_memory
            case TransferTier.RAW_BYTES:
                costs = self.raw_bytes
            case TransferTier.SAME_POD:
                return 0.0
            case _:
                assert_never(tier)
        return costs.seconds(calls * size_bytes)


def measured_links(assumed: Links, measured: ModelEstimates) -> Links:
    """Costs by what pods have measured of each tier."""
    shared, raw = TransferTier.SHARED_MEMORY, TransferTier.RAW_BYTES
    return Links(
        assumed.sent,
        fitted(assumed.shared_memory, _points(shared, measured)),
        fitted(assumed.raw_bytes, _points(raw, measured)),
    )


def _points(tier: TransferTier, measured: ModelEstimates) -> list[tuple[float, float]]:
    """Size and median time by measured size class, ascending; a class stands for half its size."""
    found = []
    for of_class in range(MAX_CLASSES):
        known = measured.get(transfer_measure(tier, of_class))
        if known is not None:
            found.append((class_bytes(of_class) / 2, known.seconds))
    return found


def fitted(assumed: TransferCosts, points: Sequence[tuple[float, float]]) -> TransferCosts:
    """Costs through measured (bytes, seconds), ascending by bytes.

    One point says by how much all is slower than assumed; several give the rate between the
    smallest and the largest.
    """
    if not points:
        return assumed
    (least_bytes, least_s), (most_bytes, most_s) = points[0], points[-1]
    if len(points) == 1:
        factor = least_s / assumed.seconds(least_bytes)
        return TransferCosts(assumed.fixed_s * factor, _rate(assumed.bytes_per_s, factor))
    if most_s <= least_s:
        return TransferCosts(most_s, inf)
    rate = (most_bytes - least_bytes) / (most_s - least_s)
    return TransferCosts(max(0.0, least_s - least_bytes / rate), rate)


def _rate(assumed: float, factor: float) -> float:
    return assumed / factor if factor > 0.0 else inf
