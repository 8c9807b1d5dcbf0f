"""Quantiles of samples, their spread over repeats, and whose turn is first."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = TypeVar("Item")


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """The same in another turn, so that nobody always comes after the same."""
    first = by % len(items) if items else 0
    return [*items[first:], *items[:first]]


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of them lie (nearest rank)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over repeats."""

    median: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest of a figure over its repeats."""
    return Spread(median(values), min(values), max(values))
