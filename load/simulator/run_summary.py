"""Summary of a simulated run, in constant memory: that of a live run, and loads by tier.

Latencies are in buckets of fixed relative width: memory depends on the names, not the requests.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from load.report.run import MOMENT_S, Floats, Ints, Requests, request_columns
from load.report.summary import (
    PERCENTILE_NAMES,
    PERCENTILES,
    Percentiles,
    RunTotals,
    groups,
    percentiles,
)
from registry.domain.model import Tier

_STEP: Final = 0.01
"""Each bucket is 1 % wider than the one before: the error of a percentile is at most 0.5 %."""
_MIN_S: Final = 1e-6
_BUCKETS: Final = 1 << 13
"""Enough for latencies from a microsecond to 1e29 s."""
_SPARSE: Final = 32
"""Ratio of possible keys to given ones above which sorting is cheaper than an array of counts."""


class StreamingLatencies:
    """Counts by code of a name and bucket; see `load.report.summary.Latencies`."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        """By code * `_BUCKETS` + bucket."""
        self._total_s = np.zeros(0)
        """By code, like `_longest_s`."""
        self._longest_s = np.zeros(0)

    def add(self, codes: Ints, seconds: Floats) -> None:
        if not len(codes):
            return
        if (more := int(codes.max()) + 1 - len(self._total_s)) > 0:
            self._total_s, self._longest_s = (
                np.pad(each, (0, more)) for each in (self._total_s, self._longest_s)
            )
        self._total_s += np.bincount(codes, seconds, minlength=len(self._total_s))
        np.maximum.at(self._longest_s, codes, seconds)
        buckets = (np.log(np.maximum(seconds, _MIN_S) / _MIN_S) / _STEP).astype(np.int64)
        keys = codes * _BUCKETS + buckets
        for key, count in zip(*_counted(keys, _BUCKETS * len(self._total_s)), strict=True):
            self._counts[key] += count

    def mean_s(self) -> float:
        """0 without requests."""
        return float(self._total_s.sum()) / max(1, self._counts.total())

    def quantiles_s(self, shares: Sequence[float]) -> list[float]:
        """The latencies that these shares of the requests do not exceed; 0 if there are none."""
        if not self._counts:
            return [0.0] * len(shares)
        keys, counts = self._arrays()
        return _quantiles_s(keys % _BUCKETS, counts, shares, float(self._longest_s.max()))

    def overall(self) -> Percentiles:
        if not self._counts:
            return percentiles(np.zeros(0))
        found = self.quantiles_s([each / 100 for each in PERCENTILES])
        return _named(found, float(self._longest_s.max()))

    def by_code(self) -> Iterator[tuple[int, Percentiles]]:
        keys, counts = self._arrays()
        for mine in groups(keys // _BUCKETS):
            code = int(keys[mine[0]]) // _BUCKETS
            longest_s = float(self._longest_s[code])
            shares = [each / 100 for each in PERCENTILES]
            found = _quantiles_s(keys[mine] % _BUCKETS, counts[mine], shares, longest_s)
            yield code, _named(found, longest_s)

    def _arrays(self) -> tuple[Ints, Ints]:
        """Keys in order, and their counts."""
        keys = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.int64, len(self._counts))
        order = np.argsort(keys)
        return keys[order], counts[order]


def _counted(keys: Ints, end: int) -> tuple[list[int], list[int]]:
    """The distinct keys, all below `end`, and how often each occurs."""
    if end > _SPARSE * len(keys):
        found, counts = np.unique(keys, return_counts=True)
    else:
        counts = np.bincount(keys)
        found = np.flatnonzero(counts)
        counts = counts[found]
    return found.tolist(), counts.tolist()


def _quantiles_s(
    buckets: Ints, counts: Ints, shares: Sequence[float], longest_s: float
) -> list[float]:
    """For each share, the middle of the bucket in which its quantile lies."""
    order = np.argsort(buckets, kind="stable")
    seen = np.cumsum(counts[order])
    at = np.searchsorted(seen, np.array(shares) * seen[-1])
    middle_s = _MIN_S * np.exp((buckets[order][np.minimum(at, len(seen) - 1)] + 0.5) * _STEP)
    found: list[float] = np.minimum(middle_s, longest_s).tolist()
    return found


def _named(quantiles_s: Sequence[float], longest_s: float) -> Percentiles:
    return {**dict(zip(PERCENTILE_NAMES, quantiles_s, strict=True)), "max": longest_s}


class Summary(RunTotals[StreamingLatencies]):
    """Totals of one run. Latencies are those of requests with a 2xx response."""

    def __init__(self) -> None:
        super().__init__(StreamingLatencies)
        self.loads: Counter[str] = Counter()
        """Loads that have ended, by the tier that they started from."""
        self.loads_started: Counter[str] = Counter()
        """By model key."""
        self.load_s = 0.0
        """Time of all loads together."""
        self.cached_tokens = 0
        self.wasted_memory_byte_s = 0.0
        """Bytes of idle models on devices times seconds."""
        self._last_scheduled_s = 0.0
        self._last_finished_s = 0.0
        self._load_wait_time = LoadWaitTime()

    def add(self, records: pa.RecordBatch) -> None:
        """Add finished requests: rows of `RECORD_SCHEMA`."""
        if not records.num_rows:
            return
        requests = Requests(**request_columns(pa.Table.from_batches([records])))
        self.add_requests(requests)
        scheduled_s, finished_s = (
            float(requests.scheduled_s.max()),
            float(requests.finished_s.max()),
        )
        self._last_scheduled_s = max(self._last_scheduled_s, scheduled_s)
        self._last_finished_s = max(self._last_finished_s, finished_s)
        self._load_wait_time.add(records.filter(pa.array(requests.is_cold)))

    def loaded(self, source: Tier, seconds: float) -> None:
        """Add a load that has ended."""
        self.loads[source.value] += 1
        self.load_s += seconds

    @property
    def mean_s(self) -> float:
        return self.latencies.mean_s()

    def quantile_s(self, share: float) -> float:
        """The latency that this share of the requests does not exceed, within 1 %."""
        return self.latencies.quantiles_s([share])[0]

    def document(self) -> dict[str, Any]:
        """Everything as JSON: the keys of a live run's summary, `loads` by tier, and the mean."""
        offered_s = max(self._last_scheduled_s, MOMENT_S)
        found = self.totals(
            offered_s=offered_s,
            duration_s=max(offered_s, self._last_finished_s),
            loading_s=self._load_wait_time.total_s,
            all_loading_s=self.load_s,
            wasted_memory_byte_s=self.wasted_memory_byte_s,
            loads=self.loads,
        )
        found["latency_s"]["mean"] = self.mean_s if found["ok"] else None
        return found


class LoadWaitTime:
    """Time in which requests waited for loads, each load once, as in `load/report/summary.py`.

    In constant memory: for each pod and model, the union of the waits for its latest load.
    """

    def __init__(self) -> None:
        self.total_s = 0.0
        self._latest: dict[tuple[str, str], tuple[float, float]] = {}
        """When the load began and ended."""

    def add(self, cold: pa.RecordBatch) -> None:
        """Add rows of `RECORD_SCHEMA`: requests that waited for loads."""
        names = ("predict_pod", "model", "sent_s", "queue_ms", "load_ms")
        columns = (cold.column(name).to_pylist() for name in names)
        for pod, model, sent_s, queue_ms, load_ms in zip(*columns, strict=True):
            if pod is not None and load_ms > 0:
                begin_s = sent_s + queue_ms / 1000
                self._add((pod, model), begin_s, begin_s + load_ms / 1000)

    def _add(self, key: tuple[str, str], begin_s: float, end_s: float) -> None:
        before = self._latest.get(key)
        if before is None or begin_s > before[1] or end_s < before[0]:
            self.total_s += end_s - begin_s
            if before is None or end_s > before[1]:
                self._latest[key] = begin_s, end_s
            return
        whole = min(begin_s, before[0]), max(end_s, before[1])
        self.total_s += (whole[1] - whole[0]) - (before[1] - before[0])
        self._latest[key] = whole
