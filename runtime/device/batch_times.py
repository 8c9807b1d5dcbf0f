"""Measured times of each model's batches by size, and the largest batch worth forming.

Starts from a stored profile, which live batches refine. Without measurements, the largest batch
doubles while that increases throughput. Used by several threads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from registry.domain.estimates import MAX_AGE_S, seconds_at_size
from registry.domain.pod import IN_SERVICE, Profile, ProfilePoint, best_rows

WINDOW: Final = 16
"""Number of the latest inferences of one batch size whose median is used."""
MIN_SAMPLES: Final = 3
INITIAL_MAX_ROWS: Final = 8
"""Largest batch of a model without measurements."""
MAX_ROWS: Final = 64
"""Largest batch tried in service, unless batches are short; profiles may have larger ones."""
SHORT_BATCH_S: Final = 0.002
"""While the largest batch takes less, twice as many rows are tried even beyond `MAX_ROWS`: a batch
costs the pod about 0.1 ms beside its inference, and short ones delay others little."""
MAX_SIZES: Final = 64
"""Limit of batch sizes with live times per model; the least recently observed is forgotten."""
LIMITED_BY_MEMORY: Final = "memory"
MIN_FULL_BATCHES: Final = 64
"""Batches at the memory limit after which twice as many rows are tried, since other models may have
been unloaded. Each failure, which costs one batch run again in parts, doubles it up to
`MAX_FULL_BATCHES`."""
MAX_FULL_BATCHES: Final = 4096


@dataclass(slots=True)
class _ModelTimes:
    stored: dict[int, ProfilePoint] = field(default_factory=dict)
    live: dict[int, deque[float]] = field(default_factory=dict)
    cpu_s: dict[int, deque[float]] = field(default_factory=dict)
    """CPU time of the same batches."""
    observed_s: dict[int, float] = field(default_factory=dict)
    """Time of the latest live batch of a size."""
    points: tuple[ProfilePoint, ...] = ()
    max_rows: int = INITIAL_MAX_ROWS
    """Computed from the points, and cached since every batch needs it."""
    limited_by: str = ""
    max_rows_in_memory: int | None = None
    full_batches: int = 0
    """Batches at the memory limit since it was set."""
    full_batches_to_grow: int = MIN_FULL_BATCHES
    is_updated: bool = False


class BatchTimes:
    """The times of all models of a device, by key."""

    def __init__(self) -> None:
        self._times: dict[str, _ModelTimes] = {}
        self._lock = threading.Lock()
        self.planned_rows: Mapping[str, int] = {}
        """Largest batch in the autoscaler's plan, by model key. Replaced as a whole."""

    def observe(
        self, key: str, rows: int, seconds: float, now_s: float, cpu_s: float | None = None
    ) -> None:
        """Add the time of a live batch that ended at `now_s`, on the clock of the device."""
        with self._lock:
            times = self._times.setdefault(key, _ModelTimes())
            samples = times.live.setdefault(rows, deque(maxlen=WINDOW))
            samples.append(seconds)
            if cpu_s is not None:
                times.cpu_s.setdefault(rows, deque(maxlen=WINDOW)).append(cpu_s)
            times.observed_s[rows] = now_s
            _raise_memory_limit(times, rows)
            if len(samples) >= MIN_SAMPLES:
                _update_point(times, rows)
                times.is_updated = True
            if len(times.live) > MAX_SIZES:
                oldest = min(times.live, key=times.observed_s.__getitem__)
                del times.live[oldest]
                times.cpu_s.pop(oldest, None)
                _update_points(times)

    def use_profile(self, profile: Profile) -> None:
        with self._lock:
            times = self._times.setdefault(profile.key, _ModelTimes())
            times.stored = {point.rows: point for point in profile.points}
            times.limited_by = profile.limited_by
            if profile.limited_by == LIMITED_BY_MEMORY and profile.points:
                times.max_rows_in_memory = max(times.stored)
            _update_points(times)

    def record_out_of_memory(self, key: str, rows: int) -> None:
        """Limit batches to half of `rows`, which did not fit into memory, for a while."""
        with self._lock:
            times = self._times.setdefault(key, _ModelTimes())
            if times.max_rows_in_memory is not None:  # it was raised too early, or not low enough
                times.full_batches_to_grow = min(MAX_FULL_BATCHES, 2 * times.full_batches_to_grow)
            times.limited_by = LIMITED_BY_MEMORY
            times.max_rows_in_memory = max(1, rows // 2)
            times.full_batches = 0

    def max_rows(self, key: str) -> int:
        """The largest batch of a model that neither annotations nor a plan limit."""
        times = self._times.get(key)
        if times is None:
            return INITIAL_MAX_ROWS
        wanted, limit = times.max_rows, times.max_rows_in_memory
        return wanted if limit is None else min(wanted, limit)

    def longest_batch_s(self, key: str) -> float:
        """The largest median over all batch sizes; 0 without measurements."""
        times = self._times.get(key)
        return max((each.latency_s for each in times.points), default=0.0) if times else 0.0

    def usual_s(self, key: str, rows: int, now_s: float) -> float:
        """The time of a batch of so many rows, by the medians of the sizes that were measured.

        Live measurements older than `MAX_AGE_S` do not count; 0 without any others.
        """
        times = self._times.get(key)
        if times is None:
            return 0.0
        observed_s = times.observed_s
        points = [
            (float(point.rows), point.latency_s)
            for point in times.points
            if now_s - observed_s.get(point.rows, now_s) <= MAX_AGE_S
        ]
        return seconds_at_size(points, rows)

    def take_updates(self, product: str) -> list[Profile]:
        """Profiles of the models with new live times since the last call."""
        with self._lock:
            updated = [(key, times) for key, times in self._times.items() if times.is_updated]
            for _, times in updated:
                times.is_updated = False
            return [
                Profile(key, product, times.points, times.limited_by, IN_SERVICE)
                for key, times in updated
            ]

    def forget(self, key: str) -> None:
        with self._lock:
            self._times.pop(key, None)

    def keys(self) -> set[str]:
        with self._lock:
            return set(self._times)


def best_max_rows(points: Sequence[ProfilePoint]) -> int:
    """The best measured size, or twice the largest while larger ones are better.

    `points`: ascending by rows.
    """
    if not points:
        return INITIAL_MAX_ROWS
    best, largest = best_rows(points), points[-1]
    if best < largest.rows:
        return best
    wanted = max(INITIAL_MAX_ROWS, 2 * largest.rows)
    if wanted <= MAX_ROWS or largest.latency_s < SHORT_BATCH_S:
        return wanted
    return max(largest.rows, MAX_ROWS)


def _raise_memory_limit(times: _ModelTimes, rows: int) -> None:
    """Count a batch that fitted, and double the limit after enough full ones."""
    limit = times.max_rows_in_memory
    if limit is None or rows < limit:
        return
    times.full_batches += 1
    if times.full_batches >= times.full_batches_to_grow:
        times.max_rows_in_memory, times.full_batches = 2 * limit, 0
        if 2 * limit >= times.max_rows:
            times.limited_by = ""


def _update_points(times: _ModelTimes) -> None:
    """Combine stored points with live medians, which take precedence."""
    live = {rows for rows, samples in times.live.items() if len(samples) >= MIN_SAMPLES}
    for rows in list(times.observed_s.keys() - times.live.keys()):
        del times.observed_s[rows]
    times.points = tuple(
        _live_point(times, rows) if rows in live else times.stored[rows]
        for rows in sorted(live | times.stored.keys())
    )
    times.max_rows = best_max_rows(times.points)


def _update_point(times: _ModelTimes, rows: int) -> None:
    """As `_update_points`, for one size only, since it runs after every batch."""
    points, point = times.points, _live_point(times, rows)
    at = bisect_left(points, rows, key=lambda each: each.rows)
    after = at + 1 if at < len(points) and points[at].rows == rows else at
    times.points = (*points[:at], point, *points[after:])
    times.max_rows = best_max_rows(times.points)


def _live_point(times: _ModelTimes, rows: int) -> ProfilePoint:
    latency_s = median(times.live[rows])
    cpu_s = median(times.cpu_s[rows]) if rows in times.cpu_s else None
    stored = times.stored.get(rows)
    if stored is None:
        return ProfilePoint(rows, latency_s, cpu_s=cpu_s)
    return replace(stored, latency_s=latency_s, throughput_rps=None, cpu_s=cpu_s)
