"""How long each model's batches take in service, by size, and how large a batch is worth having.

A stored profile is where it starts from; live batches refine it. Where nothing was measured,
batches grow for as long as larger ones bring more throughput. Used by several threads.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from registry.domain.profile import Profile, ProfilePoint, best_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW: Final = 16
"""Latest inferences of one batch size whose median counts."""
ENOUGH_SAMPLES: Final = 3
INITIAL_MAX_ROWS: Final = 8
"""Largest batch of a model that was never measured."""
MAX_ROWS: Final = 64
"""Largest batch that is tried in service; a stored profile may hold larger ones."""
LIMITED_BY_MEMORY: Final = "memory"


@dataclass(slots=True)
class _ModelTimes:
    stored: dict[int, ProfilePoint] = field(default_factory=dict)
    live: dict[int, deque[float]] = field(default_factory=dict)
    points: tuple[ProfilePoint, ...] = ()
    max_rows: int = INITIAL_MAX_ROWS
    """That the points say; asked for at every batch."""
    limited_by: str = ""
    max_rows_that_fit: int | None = None
    is_updated: bool = False


class BatchTimes:
    """The times of all models of a device, by key."""

    def __init__(self) -> None:
        self._times: dict[str, _ModelTimes] = {}
        self._lock = threading.Lock()

    def observe(self, key: str, rows: int, seconds: float) -> None:
        """A batch of `rows` took the device this long."""
        with self._lock:
            times = self._times.setdefault(key, _ModelTimes())
            samples = times.live.setdefault(rows, deque(maxlen=WINDOW))
            samples.append(seconds)
            if len(samples) >= ENOUGH_SAMPLES:
                _settle(times)
                times.is_updated = True

    def adopt(self, profile: Profile) -> None:
        """Begin from what was measured before, here or elsewhere."""
        with self._lock:
            times = self._times.setdefault(profile.key, _ModelTimes())
            times.stored = {point.rows: point for point in profile.points}
            times.limited_by = profile.limited_by
            if profile.limited_by == LIMITED_BY_MEMORY and profile.points:
                times.max_rows_that_fit = max(times.stored)
            _settle(times)

    def ran_out_of_memory(self, key: str, rows: int) -> None:
        """A batch of `rows` did not fit: no more such large ones."""
        with self._lock:
            times = self._times.setdefault(key, _ModelTimes())
            times.limited_by = LIMITED_BY_MEMORY
            times.max_rows_that_fit = max(1, rows // 2)

    def max_rows(self, key: str) -> int:
        """The largest batch to form of the model where its annotations do not say."""
        times = self._times.get(key)
        if times is None:
            return INITIAL_MAX_ROWS
        wanted, fits = times.max_rows, times.max_rows_that_fit
        return wanted if fits is None else min(wanted, fits)

    def longest_batch_s(self, key: str) -> float:
        """The longest of the medians; 0 where nothing was measured."""
        times = self._times.get(key)
        return max((each.latency_s for each in times.points), default=0.0) if times else 0.0

    def take_updates(self, device: str) -> list[Profile]:
        """Profiles of the models that batches were timed of since the last call."""
        with self._lock:
            fresh = [(key, times) for key, times in self._times.items() if times.is_updated]
            for _, times in fresh:
                times.is_updated = False
            return [Profile(key, device, times.points, times.limited_by) for key, times in fresh]

    def forget(self, key: str) -> None:
        """The model is not declared any more."""
        with self._lock:
            self._times.pop(key, None)

    def keys(self) -> set[str]:
        """Models with times."""
        with self._lock:
            return set(self._times)


def best_max_rows(points: Sequence[ProfilePoint]) -> int:
    """The best size that was measured, or twice the largest while none was found too large."""
    if not points:
        return INITIAL_MAX_ROWS
    best, largest = best_rows(points), max(point.rows for point in points)
    if best < largest:
        return best
    return max(largest, min(MAX_ROWS, max(INITIAL_MAX_ROWS, 2 * largest)))


def _settle(times: _ModelTimes) -> None:
    """Stored points with the live medians in place of theirs."""
    points = dict(times.stored)
    for rows, samples in times.live.items():
        if len(samples) >= ENOUGH_SAMPLES:
            stored = times.stored.get(rows)
            memory_bytes = stored.memory_bytes if stored is not None else None
            points[rows] = ProfilePoint(rows, median(samples), memory_bytes)
    times.points = tuple(points[rows] for rows in sorted(points))
    times.max_rows = best_max_rows(times.points)
