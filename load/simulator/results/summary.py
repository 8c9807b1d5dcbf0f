"""What a run came to, as a live run's summary has it (`load/report/summary.py`), in flat memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from load.generator.settings import LATE_S
from load.report.run import MOMENT_S
from load.report.summary import jain, percentiles
from load.simulator.results.aggregates import GOOD, MISSED, OK, Aggregates, Answered
from load.simulator.results.load_wait_time import LoadWaitTime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.report.run import Bools, Floats
    from registry.domain.model import Tier


class Summary:
    """Counts of one run. Latencies are those of requests that were answered."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.starts: Counter[str] = Counter()
        self.loads: Counter[str] = Counter()
        self.loads_started: Counter[str] = Counter()
        """By model key."""
        self.load_s = 0.0
        """Time of all loads together."""
        self.wasted_memory_byte_s = 0.0
        """Device memory of models that no request used, times the time that it was so."""
        self._with_deadline = 0
        self._last_scheduled_s = 0.0
        self._last_finished_s = 0.0
        self._models, self._policies = Aggregates(times=True), Aggregates(times=True)
        self._tenants = Aggregates(times=False)
        self._waited = LoadWaitTime()

    def add(self, records: pa.RecordBatch) -> None:
        """Requests were answered: rows of `RECORD_SCHEMA`."""
        if not records.num_rows:
            return
        status = records.column("status").to_numpy()
        for each, count in zip(*np.unique(status, return_counts=True), strict=True):
            self.statuses[int(each)] += int(count)
        for start in records.column("start").value_counts().to_pylist():
            if start["values"] is not None:
                self.starts[start["values"]] += start["counts"]
        finished_s, came_s, deadline_s = (
            _floats(records.column(each)) for each in ("finished_s", "scheduled_s", "deadline_s")
        )
        self._last_scheduled_s = max(self._last_scheduled_s, float(came_s.max()))
        self._last_finished_s = max(self._last_finished_s, float(finished_s.max()))
        has_deadline = ~np.isnan(deadline_s)
        self._with_deadline += int(has_deadline.sum())
        latency_s = finished_s - came_s
        is_ok = (status >= 200) & (status < 300)
        is_good = is_ok & ~(has_deadline & (latency_s > deadline_s))
        is_cold = _is_cold(records.column("start"))
        self._waited.add(records.filter(pa.array(is_cold)))
        answered = Answered.of(
            latency_s,
            is_ok=is_ok,
            is_good=is_good,
            is_cold=is_cold,
            is_missed=has_deadline & ~is_good,
        )
        self._models.add(records.column("model"), answered)
        self._policies.add(records.column("policy"), answered)
        self._tenants.add(records.column("tenant"), answered)

    def loaded(self, source: Tier, seconds: float) -> None:
        """A model was brought to a device."""
        self.loads[source.value] += 1
        self.load_s += seconds

    @property
    def requests(self) -> int:
        """All requests."""
        return self.statuses.total()

    @property
    def cold_starts(self) -> int:
        """Answers that waited for a load."""
        return self.starts.total() - self.starts["warm"]

    @property
    def mean_s(self) -> float:
        """Mean latency."""
        return self._models.mean_s()

    def quantile_s(self, share: float) -> float:
        """The latency that this share of the answers did not exceed, within 1 %."""
        return self._models.quantiles_s([share])[0]

    def document(self) -> Mapping[str, Any]:
        """Everything as JSON: the keys of a live run's summary, `loads` by tier, and the mean."""
        offered_s = max(self._last_scheduled_s, MOMENT_S)
        is_moment = self.requests == 1 or offered_s <= MOMENT_S
        duration_s = max(offered_s, self._last_finished_s)
        return {
            "requests": self.requests,
            "duration_s": duration_s,
            "offered_rps": None if is_moment else self.requests / offered_s,
            "goodput_rps": self._models.count(GOOD) / duration_s,
            "ok": self._models.count(OK),
            "by_status": {str(status): count for status, count in sorted(self.statuses.items())},
            "by_start": dict(sorted(self.starts.items(), key=lambda each: (-each[1], each[0]))),
            "cold_starts": self.cold_starts,
            "loads": dict(sorted(self.loads.items())),
            "loading_s": self._waited.total_s,
            "all_loading_s": self.load_s,
            "wasted_memory_byte_s": self.wasted_memory_byte_s,
            "with_deadline": self._with_deadline,
            "deadline_misses": self._models.count(MISSED),
            "late_sends": 0,
            "late_after_s": LATE_S,
            "not_sent": 0,
            "send_lateness_s": percentiles(np.zeros(min(1, self.requests))),
            "fairness": jain(self._tenants.good_shares()),
            "latency_s": {**self._models.latency_s(), "mean": self._mean_s()},
            "by_model": self._models.documents(),
            "by_policy": self._policies.documents(),
        }

    def _mean_s(self) -> float | None:
        return self.mean_s if self._models.count(OK) else None


def _is_cold(start: pa.DictionaryArray) -> Bools:
    names = start.dictionary.to_pylist()
    warm = names.index("warm") if "warm" in names else -1
    codes = start.indices.fill_null(warm).to_numpy(zero_copy_only=False)
    cold: Bools = codes != warm
    return cold


def _floats(column: pa.Array) -> Floats:
    """Numbers, NaN for null."""
    values: Floats = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return values
