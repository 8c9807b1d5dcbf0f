"""Quantiles of samples, their spread over repeats, and the order of contestants."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Item = TypeVar("Item")


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """The items in another order, so that none always follows the same one."""
    first = by % len(items) if items else 0
    return [*items[first:], *items[:first]]


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of the samples are (nearest rank)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of one figure over repeats."""

    median: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))
