"""`Counts`: arrivals per model over a bounded past, and the `History` a forecast starts from.

No clock and no I/O: the owner says what time it is (`advance`) and hands over increments (`add`).

Memory: per model 300 seconds of 2 bytes, 2,880 minutes (two days) of 4, 2,016 spans of ten minutes
(two weeks) of 4, each with the bin under way, and the last 128 minutes with arrivals of 8: 21.2 KB,
that is 212 MB at the default limit of 10,000 models, reached by doubling. Beyond it the model
that was quiet longest is forgotten.

Proposed layout in Redis, for what gateways write and a new autoscaler reads back. Keys of one pool
share its hash tag. Per gateway and second one pipeline of increments, for models that had some:

    HINCRBY pilotlight:{POOL}:arrivals:second:<second>  <model> <n>    EXPIRE 600
    HINCRBY pilotlight:{POOL}:arrivals:minute:<minute>  <model> <n>    EXPIRE 176400   (49 h)
    HINCRBY pilotlight:{POOL}:arrivals:ten:<minute/10>  <model> <n>    EXPIRE 1213200  (14 d 1 h)

Times are Redis' own. Zeros cost nothing. A running autoscaler reads the last few seconds' hashes
each tick. A new one adds what lies further back than two days from the tens, further back than five
minutes from the minutes, and the rest from the seconds, so that each arrival is added once (`add`
takes any order; beyond two days gaps between arrivals are then known to ten minutes).
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.errors import BadCounts
from autoscaler.forecasting.history import NEVER, Booleans, Floats, History, Integers
from autoscaler.forecasting.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.forecasting.ring import Rows

_FIRST_ROWS: Final = 16
_MAX_COUNT: Final = 10**9
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class CountsParams:
    """How much of the past is kept, and of how many models."""

    seconds: int = 300
    minutes: int = 2880
    tens: int = 2016
    active: int = 128
    models: int = 10_000
    step_back_s: float = 60.0
    """A clock that goes back by more was wrong before: what lies ahead of it is forgotten."""
    ahead_s: float = 5.0
    """Arrivals later than the clock by more are refused."""

    def __post_init__(self) -> None:
        for name in ("seconds", "minutes", "tens", "active", "models"):
            value = getattr(self, name)
            if not 1 <= value <= 10**6:
                raise BadCounts(f"{name} must be 1 to 1,000,000, was {value}")


@dataclass(frozen=True, slots=True)
class Added:
    """What became of increments: numbers of arrivals."""

    counted: int = 0
    too_old: int = 0
    """Older than what is kept."""
    ahead: int = 0
    """Later than the clock by more than `ahead_s`."""
    broken: int = 0
    """Increments (not arrivals) with a count below 1 or above 10^9, or a time that is no number."""


class Counts:
    """Arrivals per model. Bounded; not thread-safe: one owner, who copies by `history`."""

    def __init__(self, params: CountsParams | None = None) -> None:
        self.params = params or CountsParams()
        rows = min(_FIRST_ROWS, self.params.models)
        self.names: list[str] = []
        """Models, in the order of the rows of `history`."""
        self._rows: dict[str, int] = {}
        self._now_s = -1.0
        at = self.params
        self._seconds = Ring.empty(rows, at.seconds + 1, bin_s=1, kind=np.uint16)
        self._minutes = Ring.empty(rows, at.minutes + 1, bin_s=60, kind=np.uint32)
        self._tens = Ring.empty(rows, at.tens + 1, bin_s=600, kind=np.uint32)
        self._active = np.full((rows, at.active), NEVER, dtype=np.int64)
        self._since = np.zeros(rows, dtype=np.int64)

    @property
    def memory_bytes(self) -> int:
        """What the counters take now; `CountsParams` bounds it."""
        rings = sum(ring.counts.nbytes for ring in self._rings)
        return rings + self._active.nbytes + self._since.nbytes

    @property
    def _rings(self) -> tuple[Ring, Ring, Ring]:
        return self._seconds, self._minutes, self._tens

    def advance(self, now_s: float) -> None:
        """Say what time it is: old bins roll out. A small step back changes nothing."""
        if not np.isfinite(now_s) or now_s < 0:
            raise BadCounts(f"now_s must be finite and not negative, was {now_s}")
        if self._now_s - self.params.step_back_s <= now_s <= self._now_s:
            return
        if now_s < self._now_s:
            ahead = self._active > now_s // 60
            self._active = np.sort(np.where(ahead, NEVER, self._active), axis=1)
            self._since = np.minimum(self._since, int(now_s // 60))
        for ring in self._rings:
            ring.move_to(now_s)
        self._now_s = now_s

    def declare(self, model: str) -> int:
        """Know a model from now on, even without arrivals; returns its row."""
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

    def forget(self, model: str) -> None:
        """Drop a model; the last row takes its place."""
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

    def add(self, models: Sequence[str], times_s: Sequence[float], counts: Sequence[int]) -> Added:
        """Count arrivals; unknown models are declared. What cannot be counted is told."""
        if not len(models) == len(times_s) == len(counts):
            sizes = f"{len(models)}, {len(times_s)}, {len(counts)}"
            raise BadCounts(f"models, times_s and counts must be equally long, were {sizes}")
        times, numbers = np.asarray(times_s, np.float64), np.asarray(counts, np.float64)
        is_sound = np.isfinite(times) & (times >= 0) & (numbers >= 1) & (numbers <= _MAX_COUNT)
        is_ahead = is_sound & (times > self._now_s + self.params.ahead_s)
        oldest = (self._tens.head - self._tens.bins + 1) * self._tens.bin_s
        is_old = is_sound & (times < oldest)
        wanted = is_sound & ~is_ahead & ~is_old
        self._count(models, wanted, np.minimum(times, max(self._now_s, 0.0)), numbers)
        return Added(
            counted=int(numbers[wanted].sum()),
            too_old=int(numbers[is_old].sum()),
            ahead=int(numbers[is_ahead].sum()),
            broken=int((~is_sound).sum()),
        )

    def history(self, now_s: float, rows: Rows | None = None) -> History:
        """A copy of what is known up to `now_s`, for forecasts: of all models, or of some rows."""
        self.advance(now_s)
        at_s = max(now_s, self._now_s)
        minute = int(at_s // 60)
        rows = slice(len(self.names)) if rows is None else rows
        return History(
            origin_s=at_s,
            minutes=self._minutes.before(minute, rows, self.params.minutes),
            tens=self._tens.before(minute // 10, rows, self.params.tens),
            active=self._active[rows].copy(),
            since_minute=self._since[rows].copy(),
            recent=self._last_minute(rows),
        )

    def history_of(self, models: Sequence[str], now_s: float) -> History:
        """As `history`, of these models in this order; those unknown so far are declared."""
        for model in models:
            self.declare(model)
        return self.history(now_s, self.rows_of(models))

    def rows_of(self, models: Sequence[str]) -> Integers:
        """The rows of models that are known. Raises KeyError with one that is not."""
        return np.array([self._rows[model] for model in models], dtype=np.int64)

    def _last_minute(self, rows: Rows) -> Floats:
        last = min(60, self.params.seconds)
        seconds = self._seconds.before(self._seconds.head, rows, self.params.seconds)
        under_way = self._seconds.latest(rows)
        result: Floats = seconds[:, -last:].sum(axis=1, dtype=np.float64) + under_way
        return result

    def recent_seconds(self, rows: Rows | None = None) -> Integers:
        """(models, seconds): the last seconds, the one under way last."""
        rows = slice(len(self.names)) if rows is None else rows
        return self._seconds.before(self._seconds.head + 1, rows, self.params.seconds)

    def to_bytes(self) -> bytes:
        """Everything, compressed; `from_bytes` reads it."""
        rows = len(self.names)
        header = {
            "format": _FORMAT,
            "params": asdict(self.params),
            "names": self.names,
            "now_s": self._now_s,
        }
        written = io.BytesIO()
        np.savez_compressed(
            written,
            header=np.frombuffer(json.dumps(header).encode(), np.uint8),
            seconds=self._seconds.counts[:rows],
            minutes=self._minutes.counts[:rows],
            tens=self._tens.counts[:rows],
            active=self._active[:rows],
            since=self._since[:rows],
        )
        return written.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Counts:
        """What `to_bytes` wrote; raises BadCounts for anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as read:
                header = json.loads(read["header"].tobytes())
                if header["format"] != _FORMAT:
                    raise BadCounts(f"counts must be of format {_FORMAT}, was {header['format']}")
                counts = cls(CountsParams(**header["params"]))
                counts._restore(header["names"], header["now_s"], dict(read))
        except BadCounts:
            raise
        except (
            zipfile.BadZipFile,
            ValueError,
            KeyError,
            TypeError,
            OSError,
            EOFError,
            IndexError,
        ) as error:
            raise BadCounts(f"not written by Counts.to_bytes: {error}") from error
        return counts

    def _restore(self, names: list[str], now_s: float, arrays: dict[str, Integers]) -> None:
        if now_s >= 0:
            self.advance(now_s)
        for name in names:
            self.declare(name)
        rows = len(names)
        for ring, key in zip(self._rings, ("seconds", "minutes", "tens"), strict=True):
            ring.counts[:rows] = arrays[key]
        self._active[:rows] = arrays["active"]
        self._since[:rows] = arrays["since"]

    def _count(
        self, models: Sequence[str], wanted: Booleans, times: Floats, numbers: Floats
    ) -> None:
        chosen = np.flatnonzero(wanted)
        if not chosen.size:
            return
        rows = np.array([self.declare(models[index]) for index in chosen.tolist()], dtype=np.int64)
        # More new models than there is room for: rows of those that had to go again mean others.
        stays = np.array([self._rows.get(models[index], -1) for index in chosen.tolist()]) == rows
        rows, chosen = rows[stays], chosen[stays]
        whole = numbers[chosen].astype(np.int64)
        for ring in self._rings:
            ring.add(rows, times[chosen], whole)
        minutes = (times[chosen] // 60).astype(np.int64)
        np.minimum.at(self._since, rows, minutes)
        self._note_active(rows, minutes)

    def _note_active(self, rows: Integers, minutes: Integers) -> None:
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
            ring.clear(row)
        self._active[row] = NEVER
        self._since[row] = 0

    def _grow(self, rows: int) -> None:
        have = self._since.shape[0]
        if rows <= have:
            return
        size = min(max(2 * have, rows), self.params.models)
        for ring in self._rings:
            ring.grow(size)
        more = size - have
        self._active = np.concatenate(
            [self._active, np.full((more, self.params.active), NEVER, dtype=np.int64)]
        )
        self._since = np.concatenate([self._since, np.zeros(more, dtype=np.int64)])
