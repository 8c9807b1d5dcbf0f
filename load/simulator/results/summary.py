"""Summary of a simulated run, in constant memory: that of a live run, and loads by tier."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from load.report.run import MOMENT_S, Requests, request_columns
from load.report.summary import RunTotals
from load.simulator.results.streaming_latencies import StreamingLatencies

if TYPE_CHECKING:
    from registry.domain.model import Tier


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
    """Time in which requests waited for loads, each load once, as in `load/report/pod_usage.py`.

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
