"""A run in columns, and what follows from them request by request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WASTED_KEY: Final = "wasted_memory_byte_s"
LOADING_KEY: Final = "all_loading_s"
"""Of a run's metadata or summary file."""
MOMENT_S: Final = 1e-3
"""Requests that come within it come at one moment."""

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class GroupedNames:
    """A column of names: `codes[i]` is an index into `names`, -1 for none."""

    codes: np.ndarray[Any, np.dtype[np.int32]]
    names: tuple[str, ...]

    def counts(self, where: Bools | None = None) -> dict[str, int]:
        """How often each name occurs, most frequent first, ties by name."""
        codes = self.codes if where is None else self.codes[where]
        totals = np.bincount(codes[codes >= 0], minlength=len(self.names))
        pairs = [(name, int(n)) for name, n in zip(self.names, totals, strict=True) if n]
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

    def groups(self) -> Iterator[tuple[str, Ints]]:
        """Each name with the rows it is in, most frequent first."""
        order = np.argsort(self.codes, kind="stable")
        bounds = np.searchsorted(self.codes[order], np.arange(len(self.names) + 1))
        rows = {
            name: order[bounds[code] : bounds[code + 1]] for code, name in enumerate(self.names)
        }
        for name in self.counts():
            yield name, rows[name]


@dataclass(frozen=True)
class Run:
    """One run. Times in seconds since its start, stages in milliseconds, NaN where unknown."""

    name: str
    about: Mapping[str, Any]
    """What the file, or the summary beside it, says of the run."""
    tenant: GroupedNames
    model: GroupedNames
    policy: GroupedNames
    predict_pod: GroupedNames
    start: GroupedNames
    scheduled_s: Floats
    sent_s: Floats
    first_byte_s: Floats
    finished_s: Floats
    deadline_s: Floats
    status: Ints
    is_ok: Bools
    """Answered with 2xx, whole."""
    stages_ms: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.scheduled_s)

    @property
    def was_interrupted(self) -> bool:
        """Whether it ended before its trace did."""
        return bool(self.about.get("interrupted"))

    @property
    def wasted_memory_byte_s(self) -> float | None:
        """Bytes of idle models times the seconds they lay on devices; None: it is not told."""
        return self._told(WASTED_KEY)

    @property
    def all_loading_s(self) -> float | None:
        """Seconds of all loads onto devices, preloads among them; None: it is not told."""
        return self._told(LOADING_KEY)

    def _told(self, key: str) -> float | None:
        """A figure that the run tells of itself, if it is one."""
        value = self.about.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 <= value < np.inf else None

    @cached_property
    def latency_s(self) -> Floats:
        """From the scheduled time to the last byte; NaN where no whole answer came."""
        return np.where(self.is_ok, self.finished_s - self.scheduled_s, np.nan)

    @cached_property
    def has_deadline(self) -> Bools:
        """Whether the request had one."""
        return ~np.isnan(self.deadline_s)

    @cached_property
    def is_good(self) -> Bools:
        """Answered, and within the deadline where there was one: what goodput counts."""
        return self.is_ok & ~(self.has_deadline & (self.latency_s > self.deadline_s))

    @cached_property
    def is_missed(self) -> Bools:
        """Had a deadline and was not answered by then."""
        missed: Bools = self.has_deadline & ~self.is_good
        return missed

    @cached_property
    def is_cold(self) -> Bools:
        """Waited for the model to be brought to the device."""
        names = self.start.names
        warm = names.index("warm") if "warm" in names else -2
        cold: Bools = (self.start.codes >= 0) & (self.start.codes != warm)
        return cold

    @cached_property
    def offered_s(self) -> float:
        """Length of the time in which requests arrived; at least a millisecond."""
        told = 0.0 if self.was_interrupted else self._told("trace_s") or 0.0
        return max(told, float(self.scheduled_s.max()), MOMENT_S)

    @property
    def offered_rps(self) -> float | None:
        """Requests per second of the trace; None: there is one, or all came at one moment."""
        if self.requests == 1 or self.offered_s <= MOMENT_S:
            return None
        return self.requests / self.offered_s

    @property
    def goodput_rps(self) -> float:
        """Requests per second that were answered in time."""
        return int(self.is_good.sum()) / self.duration_s

    @cached_property
    def duration_s(self) -> float:
        """From the start to the last arrival or answer, whichever is later."""
        ends = self.finished_s[~np.isnan(self.finished_s)]
        return max(self.offered_s, float(ends.max()) if len(ends) else 0.0)
