"""Requests and runs in columns, and the values derived from them for each request."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WASTED_KEY: Final = "wasted_memory_byte_s"
LOADING_KEY: Final = "all_loading_s"
"""Keys in a run's metadata or summary file."""
MOMENT_S: Final = 1e-3
"""Requests that all arrive within this time arrive at one moment: they have no rate."""

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class GroupedNames:
    """A column of names: `codes[i]` is an index into `names`, -1 for null."""

    codes: np.ndarray[Any, np.dtype[np.int32]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "GroupedNames":
        """From a dictionary-encoded column."""
        whole = column.unify_dictionaries().combine_chunks()
        if isinstance(whole, pa.ChunkedArray):
            whole = whole.chunk(0)
        codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return cls(codes.astype(np.int32, copy=False), tuple(whole.dictionary.to_pylist()))

    def counts(self) -> dict[str, int]:
        """Rows per name, most frequent first, ties by name."""
        totals = np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))
        pairs = [(name, int(n)) for name, n in zip(self.names, totals, strict=True) if n]
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


@dataclass(frozen=True)
class Requests:
    """Requests in columns. Times in seconds since the run's start, NaN where unknown."""

    tenant: GroupedNames
    model: GroupedNames
    policy: GroupedNames
    start: GroupedNames
    scheduled_s: Floats
    sent_s: Floats
    finished_s: Floats
    deadline_s: Floats
    """Counted from the scheduled time."""
    status: Ints
    is_ok: Bools
    """The request has a complete 2xx response."""

    @property
    def requests(self) -> int:
        return len(self.scheduled_s)

    @cached_property
    def latency_s(self) -> Floats:
        """From the scheduled time to the last byte; NaN without a complete 2xx response."""
        return np.where(self.is_ok, self.finished_s - self.scheduled_s, np.nan)

    @cached_property
    def has_deadline(self) -> Bools:
        return ~np.isnan(self.deadline_s)

    @cached_property
    def is_good(self) -> Bools:
        """Counts as goodput: a response, within the deadline if there is one."""
        return self.is_ok & ~(self.has_deadline & (self.latency_s > self.deadline_s))

    @cached_property
    def is_missed(self) -> Bools:
        """The request has a deadline, and no response by then."""
        return self.has_deadline & ~self.is_good

    @cached_property
    def is_cold(self) -> Bools:
        """The request waited for a load of its model."""
        names = self.start.names
        warm = names.index("warm") if "warm" in names else -2
        cold: Bools = (self.start.codes >= 0) & (self.start.codes != warm)
        return cold


def request_columns(table: pa.Table) -> dict[str, Any]:
    """The fields of `Requests`, from columns of `RECORD_SCHEMA`."""
    status = table.column("status").to_numpy()
    is_complete = pc.is_null(table.column("error")).to_numpy()
    names = {
        each: GroupedNames.of(table.column(each)) for each in ("tenant", "model", "policy", "start")
    }
    times_s = {
        each: floats(table.column(each))
        for each in ("scheduled_s", "sent_s", "finished_s", "deadline_s")
    }
    is_ok = (status >= 200) & (status < 300) & is_complete
    return {**names, **times_s, "status": status, "is_ok": is_ok}


def floats(column: pa.ChunkedArray) -> Floats:
    """Numbers, NaN for null."""
    values: Floats = column.to_numpy()
    return values.astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class Answers:
    """What requests with labelled examples got, a row each; from columns of `ANSWER_SCHEMA`."""

    variant: GroupedNames
    label: Floats
    """NaN: unknown."""
    prediction: Floats
    """NaN: no response."""
    expected_utility: Floats
    utility: Floats
    """Achieved; 0 without a response."""

    @classmethod
    def of(cls, table: pa.Table) -> "Answers":
        names = ("label", "prediction", "expected_utility", "utility")
        return cls(
            GroupedNames.of(table.column("variant").cast(table.schema.field("variant").type)),
            *(floats(table.column(each).cast("float64")) for each in names),
        )

    @property
    def is_right(self) -> Bools:
        right: Bools = self.prediction == self.label
        return right

    @property
    def is_judged(self) -> Bools:
        return ~np.isnan(self.label)


@dataclass(frozen=True, slots=True)
class Failures:
    """Requests for one model that failed with one status."""

    model: str
    status: int
    """0: no response."""
    requests: int
    first_error: str


def failures_of(table: pa.Table) -> tuple[Failures, ...]:
    """Those in columns of `RECORD_SCHEMA`, the most frequent first."""
    failed = table.select(["model", "status", "error"]).filter(pc.is_valid(table.column("error")))
    failed = failed.set_column(0, "model", failed.column("model").cast(pa.string()))
    grouped = failed.group_by(["model", "status"], use_threads=False)
    rows = grouped.aggregate([("error", "count"), ("error", "first")]).to_pylist()
    found = [
        Failures(row["model"], row["status"], row["error_count"], row["error_first"])
        for row in rows
    ]
    return tuple(sorted(found, key=lambda each: (-each.requests, each.model, each.status)))


@dataclass(frozen=True)
class Run(Requests):
    name: str
    metadata: Mapping[str, Any]
    """From the file and the summary beside it."""
    predict_pod: GroupedNames
    stages_ms: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]
    first_byte_s: Floats
    output_tokens: Floats
    """Generated, as the server reported them, or else asked for; 0: not a generation."""
    answers: Answers | None = None
    """Of a run with labelled examples."""
    failures: tuple[Failures, ...] = ()

    @property
    def was_interrupted(self) -> bool:
        return bool(self.metadata.get("interrupted"))

    @property
    def is_streamed(self) -> bool:
        return bool(self.metadata.get("protocol") == "openai")

    @property
    def first_token_s(self) -> Floats | None:
        """From the scheduled time to the first byte of a stream; None: nothing was streamed."""
        if not self.is_streamed:
            return None
        return np.where(self.is_ok, self.first_byte_s - self.scheduled_s, np.nan)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of all complete streams over the run's duration; None: nothing was generated."""
        total = float(self.output_tokens[self.is_ok].sum()) if self.is_streamed else 0.0
        return total / self.duration_s if total else None

    @property
    def time_per_token_s(self) -> Floats:
        """Of each stream after its first token; NaN where fewer than two tokens came."""
        later = np.where(self.is_ok & (self.output_tokens > 1), self.output_tokens - 1, np.nan)
        return (self.finished_s - self.first_byte_s) / later

    @property
    def wasted_memory_byte_s(self) -> float | None:
        """Bytes of idle models on devices times seconds; None: not recorded."""
        return self._recorded(WASTED_KEY)

    @property
    def all_loading_s(self) -> float | None:
        """Seconds of all loads to devices, preloads included; None: not recorded."""
        return self._recorded(LOADING_KEY)

    def _recorded(self, key: str) -> float | None:
        """A figure of the metadata; None if it is missing or not a finite number from 0."""
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 <= value < np.inf else None

    @cached_property
    def offered_s(self) -> float:
        """Length of the time in which requests arrived; at least a millisecond."""
        trace_s = 0.0 if self.was_interrupted else self._recorded("trace_s") or 0.0
        return max(trace_s, float(self.scheduled_s.max()), MOMENT_S)

    @property
    def offered_rps(self) -> float | None:
        return rate_rps(self.requests, self.offered_s)

    @property
    def goodput_rps(self) -> float:
        """Requests per second with a response in time."""
        return int(self.is_good.sum()) / self.duration_s

    @cached_property
    def duration_s(self) -> float:
        """From the start to the last arrival or response, whichever is later."""
        ends = self.finished_s[~np.isnan(self.finished_s)]
        return max(self.offered_s, float(ends.max()) if len(ends) else 0.0)


def rate_rps(requests: int, offered_s: float) -> float | None:
    """Requests per second; None for a single request, or if all arrived at one moment."""
    return None if requests == 1 or offered_s <= MOMENT_S else requests / offered_s
