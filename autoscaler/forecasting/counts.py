"""`Counts`: arrivals per model over a bounded past, and the `History` that a forecast starts from.

No clock and no I/O: the owner sets the time (`advance`) and passes new counts (`add`).

Memory per model is 21.2 KB: 300 bins of a second (2 bytes each), 2,880 bins of a minute (two days,
4 bytes each) and 2,016 bins of ten minutes (two weeks, 4 bytes each), each plus the current bin,
and the last 128 minutes with arrivals (8 bytes each). The arrays double as models are added, up to
212 MB at the default limit of 10,000 models. Beyond the limit the model with the oldest last
arrival is removed.

Redis keeps the counts, too (`registry.redis.reports`). A new autoscaler restores arrivals older
than two days from counts per ten minutes, arrivals older than five minutes from counts per minute
and the rest from counts per second, so that each arrival is added once, in any order. Gaps between
arrivals older than two days then have a resolution of ten minutes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from autoscaler.forecasting.history import NEVER, Floats, History, Integers
from registry.domain.model import ModelName

Rows: TypeAlias = slice | Integers


_INITIAL_ROWS: Final = 16
_MAX_COUNT: Final = 10**9


class Ring:
    """(rows, bins) counters. Bin b (time divided by `bin_s`) is in column b modulo bins."""

    __slots__ = ("bin_s", "counts", "head")

    def __init__(
        self, rows: int, bins: int, *, bin_s: int, dtype: type[np.unsignedinteger]
    ) -> None:
        self.counts: Integers = np.zeros((rows, bins), dtype=dtype)
        self.bin_s = bin_s
        self.head = -1
        """The latest bin; the earliest is `head - bins + 1`."""

    @property
    def bins(self) -> int:
        return int(self.counts.shape[1])

    def move_to(self, time_s: float) -> None:
        """Make the bin of `time_s` the latest one; drops bins that are then too old or ahead."""
        new = int(time_s // self.bin_s)
        if abs(new - self.head) >= self.bins:
            self.counts[:] = 0
        elif new > self.head:
            self.counts[:, np.arange(self.head + 1, new + 1) % self.bins] = 0
        elif new < self.head:
            # Columns of bins ahead become those of the earliest bins, whose counts are lost.
            self.counts[:, np.arange(new + 1, self.head + 1) % self.bins] = 0
        self.head = new

    def add(self, rows: Integers, times_s: Floats, counts: Integers) -> None:
        """Add counts within the bins; others are dropped. Counters stop at their type's maximum."""
        bins = np.floor_divide(times_s, self.bin_s).astype(np.int64)
        is_kept = (bins <= self.head) & (bins > self.head - self.bins)
        cells = rows[is_kept] * self.bins + bins[is_kept] % self.bins
        changed, index = np.unique(cells, return_inverse=True)
        sums = np.bincount(index, weights=counts[is_kept], minlength=changed.size)
        flat = self.counts.reshape(-1)
        limit = np.iinfo(self.counts.dtype).max
        flat[changed] = np.minimum(flat[changed] + sums, limit).astype(self.counts.dtype)

    def before(self, end: int, rows: Rows, length: int) -> Integers:
        """(rows, length): the bins before bin `end`, oldest first; bins that are not kept are 0."""
        shift = end % self.bins
        unrolled = np.concatenate([self.counts[rows, shift:], self.counts[rows, :shift]], axis=1)
        first = end - self.bins
        known_from = self.head - self.bins + 1
        if known_from > first:
            unrolled[:, : min(known_from - first, self.bins)] = 0
        if end - 1 > self.head:
            unrolled[:, max(self.head + 1 - first, 0) :] = 0
        return unrolled[:, self.bins - length :]

    def latest(self, rows: Rows) -> Integers:
        """(rows,): the counts of the current bin."""
        return self.counts[rows, self.head % self.bins].copy()

    def grow(self, rows: int) -> None:
        """Append rows of zeros."""
        more = np.zeros((rows, self.bins), dtype=self.counts.dtype)
        self.counts = np.concatenate([self.counts, more])


@dataclass(frozen=True, slots=True)
class CountsParams:
    """Limits: bins of each length, minutes with arrivals, models."""

    seconds: int = 300
    minutes: int = 2880
    ten_minutes: int = 2016
    active_minutes: int = 128
    models: int = 10_000
    step_back_s: float = 60.0
    """If the clock is set back by more, arrivals after the new time are dropped."""
    ahead_s: float = 5.0
    """Arrivals that are ahead of the clock by more are dropped."""


class Counts:
    """Arrivals per model. Bounded. Not thread-safe: one owner, who makes copies with `history`."""

    def __init__(self, params: CountsParams | None = None) -> None:
        self.params = params or CountsParams()
        rows = min(_INITIAL_ROWS, self.params.models)
        self.names: list[str] = []
        """Models, in the order of the rows of `history`."""
        self._rows: dict[str, int] = {}
        self._now_s = -1.0
        sizes = self.params
        self._seconds = Ring(rows, sizes.seconds + 1, bin_s=1, dtype=np.uint16)
        self._minutes = Ring(rows, sizes.minutes + 1, bin_s=60, dtype=np.uint32)
        self._ten_minutes = Ring(rows, sizes.ten_minutes + 1, bin_s=600, dtype=np.uint32)
        self._rings = (self._seconds, self._minutes, self._ten_minutes)
        self._active = np.full((rows, sizes.active_minutes), NEVER, dtype=np.int64)
        self._since = np.zeros(rows, dtype=np.int64)

    @property
    def memory_bytes(self) -> int:
        rings = sum(ring.counts.nbytes for ring in self._rings)
        return rings + self._active.nbytes + self._since.nbytes

    def advance(self, now_s: float) -> None:
        """Set the time: old bins are dropped. A step back of up to `step_back_s` is ignored."""
        if self._now_s - self.params.step_back_s <= now_s <= self._now_s:
            return
        if now_s < self._now_s:
            ahead = self._active > now_s // 60
            self._active = np.sort(np.where(ahead, NEVER, self._active), axis=1)
            self._since = np.minimum(self._since, int(now_s // 60))
        for ring in self._rings:
            ring.move_to(now_s)
        self._now_s = now_s

    def add_model(self, model: str) -> int:
        """Return the model's row; a new model gets one even before its first arrival."""
        row = self._rows.get(model)
        if row is not None:
            return row
        if len(self.names) < self.params.models:
            row = len(self.names)
            self._grow(row + 1)
            self.names.append(model)
        else:
            row = int(np.lexsort((np.arange(len(self.names)), self._last_known()))[0])
            del self._rows[self.names[row]]
            self.names[row] = model
            self._clear(row)
        self._rows[model] = row
        self._since[row] = max(int(self._now_s // 60), 0)
        return row

    def remove_model(self, model: str) -> None:
        """Remove a model, if known; the last row moves to the freed row."""
        row = self._rows.pop(model, None)
        if row is None:
            return
        last = len(self.names) - 1
        for array in (*(ring.counts for ring in self._rings), self._active, self._since):
            array[row] = array[last]
        self.names[row] = self.names[last]
        if row != last:
            self._rows[self.names[row]] = row
        self.names.pop()
        self._clear(last)

    def add(self, models: Sequence[str], times_s: Sequence[float], counts: Sequence[int]) -> None:
        """Add arrivals, and new models. Drops counts below 1 or above 10^9, and invalid times.

        A time is invalid if it is not finite, is negative, is older than the oldest bin, or is
        ahead of the clock by more than `ahead_s`.
        """
        times, numbers = np.asarray(times_s, np.float64), np.asarray(counts, np.float64)
        is_sound = np.isfinite(times) & (times >= 0) & (numbers >= 1) & (numbers <= _MAX_COUNT)
        oldest_s = (self._ten_minutes.head - self._ten_minutes.bins + 1) * self._ten_minutes.bin_s
        is_kept = (times >= oldest_s) & (times <= self._now_s + self.params.ahead_s)
        chosen = np.flatnonzero(is_sound & is_kept)
        if not chosen.size:
            return
        rows = np.array([self.add_model(models[at]) for at in chosen.tolist()], dtype=np.int64)
        # With more new models than free rows, a row may have been reused since: skip its old model.
        is_current = np.array([self._rows.get(models[at], -1) for at in chosen.tolist()]) == rows
        rows, chosen = rows[is_current], chosen[is_current]
        times = np.minimum(times, max(self._now_s, 0.0))[chosen]
        whole = numbers[chosen].astype(np.int64)
        for ring in self._rings:
            ring.add(rows, times, whole)
        minutes = (times // 60).astype(np.int64)
        np.minimum.at(self._since, rows, minutes)
        self._add_active(rows, minutes)

    def history(self, now_s: float, rows: Rows | None = None) -> History:
        """A copy of the counts up to `now_s`, of all models or of some rows."""
        self.advance(now_s)
        at_s = max(now_s, self._now_s)
        minute = int(at_s // 60)
        rows = slice(len(self.names)) if rows is None else rows
        return History(
            origin_s=at_s,
            minutes=self._minutes.before(minute, rows, self.params.minutes),
            ten_minutes=self._ten_minutes.before(minute // 10, rows, self.params.ten_minutes),
            active_minutes=self._active[rows].copy(),
            since_minute=self._since[rows].copy(),
            recent=self._last_minute(rows),
        )

    def history_of(self, models: Sequence[str], now_s: float) -> History:
        """The `history` of these models, in this order; new models are added."""
        for model in models:
            self.add_model(model)
        return self.history(now_s, self.rows_of(models))

    def rows_of(self, models: Sequence[str]) -> Integers:
        """Row numbers of the models. Raises KeyError if one is unknown."""
        return np.array([self._rows[model] for model in models], dtype=np.int64)

    def _last_minute(self, rows: Rows) -> Floats:
        last = min(60, self.params.seconds)
        seconds = self._seconds.before(self._seconds.head, rows, self.params.seconds)
        current = self._seconds.latest(rows)
        result: Floats = seconds[:, -last:].sum(axis=1, dtype=np.float64) + current
        return result

    def recent_seconds(self, rows: Rows | None = None) -> Integers:
        """(models, seconds): counts of the last seconds, the current one last."""
        rows = slice(len(self.names)) if rows is None else rows
        return self._seconds.before(self._seconds.head + 1, rows, self.params.seconds)

    def _add_active(self, rows: Integers, minutes: Integers) -> None:
        for row, minute in sorted(set(zip(rows.tolist(), minutes.tolist(), strict=True))):
            kept = self._active[row]
            place = int(np.searchsorted(kept, minute))
            if place < kept.size and kept[place] == minute:
                continue
            if place:
                kept[: place - 1] = kept[1:place]
                kept[place - 1] = minute

    def _last_known(self) -> Integers:
        rows = len(self.names)
        return np.maximum(self._active[:rows, -1], self._since[:rows])

    def _clear(self, row: int) -> None:
        for ring in self._rings:
            ring.counts[row] = 0
        self._active[row] = NEVER
        self._since[row] = 0

    def _grow(self, rows: int) -> None:
        size = self._since.shape[0]
        if rows <= size:
            return
        new_size = min(max(2 * size, rows), self.params.models)
        more = new_size - size
        for ring in self._rings:
            ring.grow(more)
        added = np.full((more, self.params.active_minutes), NEVER, dtype=np.int64)
        self._active = np.concatenate([self._active, added])
        self._since = np.concatenate([self._since, np.zeros(more, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """The counts that one forecast starts from."""

    models: tuple[str, ...]
    rows: Integers | None
    """The models of `history`, as indices of `models`; None: all of them."""
    history: History
    seconds: Integers
    """(models, seconds): counts of the last minutes of all models, the current second last."""


class ObservedDemand:
    """Arrivals of one pool, as observed by its autoscaler. Used by one task only."""

    def __init__(
        self, counts: Counts | None, *, time_scale: float = 1.0, epoch_s: float = 0.0
    ) -> None:
        """Without `counts` there is no history.

        The counts have a clock of their own: `epoch_s` + `time_scale` * time.
        """
        self._counts = counts
        self.time_scale = time_scale
        self._epoch_s = epoch_s
        self._models: frozenset[str] = frozenset()
        self._arrived: defaultdict[ModelName, int] = defaultdict(int)
        self.changed: set[str] = set()
        """Models with arrivals since their last `forecast_input`."""
        self.last_arrival_s: dict[ModelName, float] = {}

    def counts_s(self, time_s: float) -> float:
        """Convert a time to the clock of the counts."""
        return self._epoch_s + self.time_scale * time_s

    def reset(self, counts: Counts) -> None:
        """Replace the counts by empty ones."""
        self._counts = counts
        self._models = frozenset()

    def set_models(self, models: Sequence[ModelName], now_s: float) -> None:
        """Advance the clock, add new models and remove all models that are not listed."""
        if self._counts is not None:
            self._counts.advance(self.counts_s(now_s))
        names = frozenset(map(str, models))
        self.last_arrival_s = {
            name: min(at_s, now_s)
            for name, at_s in self.last_arrival_s.items()
            if str(name) in names
        }
        if self._counts is not None and names != self._models:
            for name in set(self._counts.names) - names:
                self._counts.remove_model(name)
            for name in sorted(names - self._models):
                self._counts.add_model(name)
        self._models = names

    def add(
        self,
        arrivals: Sequence[tuple[ModelName, float, int]],
        *,
        length_s: float = 0.0,
        is_new: bool = True,
    ) -> None:
        """Add (model, start, count) of windows of this length, in any order.

        `is_new`: the requests arrived since the last plan.
        """
        for model, start_s, count in arrivals:
            self.last_arrival_s[model] = max(
                self.last_arrival_s.get(model, 0.0), start_s + length_s
            )
            if is_new:
                self._arrived[model] += count
                self.changed.add(str(model))
        known = [each for each in arrivals if str(each[0]) in self._models]
        if self._counts is not None and known:
            self._counts.add(
                [str(model) for model, _, _ in known],
                [self.counts_s(start_s) for _, start_s, _ in known],
                [count for _, _, count in known],
            )

    def take_arrived(self) -> Mapping[ModelName, int]:
        """Arrivals by model since the last call."""
        taken, self._arrived = self._arrived, defaultdict(int)
        return taken

    def recent_rates(self, window_s: int) -> dict[str, float]:
        """Arrivals per second of the last whole seconds, by model; empty without counts."""
        if self._counts is None:
            return {}
        seconds = self._counts.recent_seconds()[:, -1 - window_s : -1]
        rates = seconds.mean(axis=1) if seconds.size else []
        return {name: float(rate) for name, rate in zip(self._counts.names, rates, strict=False)}

    def forecast_input(
        self, now_s: float, models: tuple[str, ...], rows: Integers | None = None
    ) -> ForecastInput | None:
        """A copy of the counts of these models, in their order; None if a model is not counted.

        With `rows` the history covers only those models. Its models are removed from `changed`.
        """
        if self._counts is None or not models:
            return None
        try:
            indices = self._counts.rows_of(models)
        except KeyError:
            return None  # a model was added after the last `set_models`
        chosen = indices if rows is None else indices[rows]
        history = self._counts.history(self.counts_s(now_s), chosen)
        self.changed -= set(models if rows is None else (models[row] for row in rows.tolist()))
        seconds = self._counts.recent_seconds(indices)
        if self.time_scale > 1:  # the registry's counts per second are too coarse for a fast clock
            seconds = np.zeros_like(seconds)
        return ForecastInput(models, rows, history, seconds)
